"""What pools bear at the moment, and candidates in that order."""
