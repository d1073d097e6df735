"""What is built once and started often: versions, the active link, pins, prune."""
