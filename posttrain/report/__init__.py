"""`report.html`: one self-contained page about an artifact and everything it was made from."""
