"""`pegaflow doctor`: what is wrong with a deployment, and what to do. Facts are collected, then judged without any I/O."""
