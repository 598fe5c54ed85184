"""What a request says of its images: where the prompt shows them, and what a tower reads."""
