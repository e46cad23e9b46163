//! large
