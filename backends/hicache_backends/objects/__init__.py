"""Pages as objects: one object a page in a store that finds it by key, such as a bucket."""
