//! `tierfs csi`: calls over its socket, and the mounts that they make. The program runs as root.

mod crossings;
mod health;
mod plugin;
mod services;
mod wire;
