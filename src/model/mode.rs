//! Mode bits of nodes (see inode(7)).

/// All mode bits that can be set: permissions, set-user-ID, set-group-ID, sticky.
pub const MODE_BITS: u32 = 0o7777;
/// The permission bits of a mode.
pub const PERMISSIONS: u32 = 0o777;
pub const SET_USER_ID: u32 = 0o4000;
pub const SET_GROUP_ID: u32 = 0o2000;
/// The permission to execute for the group. It makes a file's set-group-ID bit effective.
pub const GROUP_EXECUTES: u32 = 0o010;
/// The permission to write for the owner.
pub const OWNER_WRITES: u32 = 0o200;
/// All permissions of the owner.
pub const OWNER_BITS: u32 = 0o700;
/// The permission to read, for everyone.
pub const READ_BITS: u32 = 0o444;
/// The permissions to list and enter a directory, for everyone.
pub const ENTER_BITS: u32 = 0o555;
