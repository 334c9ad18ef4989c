"""Small networks whose classes depend on a planted cue, so that the correct map is known.

A picture has one large object, grey, striped or chequered, and a small coloured marker. The colour of the marker is the
class; the kind of the object says nothing about it. Classifiers learn that too, as outputs of their own, so their
features show the object, and a method that shows strong features is wrong about the class. `drawings` draws such
pictures, `networks` learn them, and ``python -m tools.planted`` trains these and writes their weights.
"""
