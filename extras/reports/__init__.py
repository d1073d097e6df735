"""Reports of what runs have used, pages about runs, and the upload of what W&B recorded offline."""
