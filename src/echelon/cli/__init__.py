"""The command line: handlers parse, call, print and return a code. What they call lives in the
layers below.
"""
