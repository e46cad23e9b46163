//! Records of `delta.dat` and `factor.dat`.

pub mod delta;
pub mod difference;
pub mod element;
pub mod factor;
