"""What a data set's loss masks teach, counted, held against limits, and shown by its worst."""
