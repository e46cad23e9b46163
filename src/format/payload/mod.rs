//! Records of `delta.dat` and `factor.dat`.

pub mod delta;
pub mod factor;
