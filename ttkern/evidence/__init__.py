"""Evidence: what makes a result worth believing.

`compare` judges one output, `faults` makes wrong outputs from right ones, `gate` proves the first on the second.
"""
