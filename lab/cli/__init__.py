"""Commands that the laboratory adds to `specgate`."""

# The command line loads these modules while it is imported, and they import parts of it: whichever a program asks for
# first, the command line comes first.
import serve.cli  # noqa: F401
