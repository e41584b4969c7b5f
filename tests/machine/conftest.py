"""What runs inside the guest is no test of this interpreter's: there its neighbours are top-level modules."""

collect_ignore = ["guest/pipeline.py"]
