//! One suite, run over every fabric.
