"""Questions asked of datasets in Spark SQL, and their answers rendered. Not built yet: see README.md."""
