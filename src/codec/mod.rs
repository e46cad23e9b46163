//! Numbers to packed codes and back.
