"""All-reduce and its kin, plain, masked and in the background."""
