"""The methods ours are compared with, behind the same interfaces."""
