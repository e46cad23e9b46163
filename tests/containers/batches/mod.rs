//! Embedding batches: split into tensors, assembled, encoded, written to, damaged. The independent writer
//! `tests/golden/reference.py` makes the files and checks the served bytes.

mod batch;
mod changes;
mod command;
mod hostile;
mod model;
mod reading;
mod unpadded;
