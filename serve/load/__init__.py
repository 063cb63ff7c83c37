"""The load of pools at the moment, and candidates in that order."""
