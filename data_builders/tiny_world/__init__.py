"""A small world to train on and be judged on: questions, tools, a database, and their graders.

    make_item(Place(seed=1, split="heldout", family="maths", index=0)); grade(metadata, "623")

Procedural and offline: see docs/guides/tiny-world.md for the families and the fields.
"""
