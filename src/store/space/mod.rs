//! Where bytes may go: the files, free space and reservations.

pub(in crate::store) mod external_file;
pub(in crate::store) mod files;
pub(in crate::store) mod holders;
pub(in crate::store) mod reservations;
pub(in crate::store) mod slots;
