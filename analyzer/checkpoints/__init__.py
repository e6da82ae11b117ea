"""A capture point read in pieces: all that is known between two of them, stored and taken up by another process.

course      a capture point as a `ResumableReader`: read some files, take a snapshot, read on, finish
stored      objects of the inventory as one sealed snapshot, and back
inventory   what is stored: every class that holds state between windows, and which of its attributes
codec       objects of these classes to plain lists, numbers and arrays, and back
sealing     those as a file that only this user's kwire writes and reads
"""
