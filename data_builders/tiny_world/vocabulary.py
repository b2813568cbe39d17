"""The words the tiny world is made of: short, distinct, and few enough to become single tokens.

PEOPLE[0] == "ana", THINGS[0] == "lamp", COLOURS[0] == "red"
"""

from __future__ import annotations

PEOPLE = ("ana", "ben", "cleo", "dan", "eva", "finn", "gus", "hal", "ida", "jon", "kim", "leo")
THINGS = (
    "lamp",
    "desk",
    "chair",
    "cup",
    "pen",
    "book",
    "bag",
    "clock",
    "rug",
    "plate",
    "kettle",
    "shelf",
)
COLOURS = ("red", "blue", "green", "black", "white", "pink")
WORDS = (
    "sun",
    "cat",
    "map",
    "tree",
    "fish",
    "ring",
    "bell",
    "coat",
    "door",
    "milk",
    "road",
    "star",
    "leaf",
    "salt",
    "wolf",
    "nest",
)
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
SERVICES = ("mail", "web", "disk", "cron", "auth")
LEVELS = ("ok", "warn", "error")
CITIES = ("oslo", "lima", "cairo", "rome", "quito", "delhi", "tokyo", "paris")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
