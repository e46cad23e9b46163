//! Access modes of volumes and options of mounts.

use serde_json::{Value, json};

use crate::csi::failure::{Failure, Outcome};
use crate::csi::messages::VolumeCapability;

const SINGLE_NODE_READER_ONLY: i32 = 2;
const MULTI_NODE_READER_ONLY: i32 = 3;
const MULTI_NODE_SINGLE_WRITER: i32 = 4;
const MULTI_NODE_MULTI_WRITER: i32 = 5;
const SINGLE_NODE_MULTI_WRITER: i32 = 7;
/// The modes, from `SINGLE_NODE_WRITER` on.
const MODES: std::ops::RangeInclusive<i32> = 1..=SINGLE_NODE_MULTI_WRITER;

/// The use that a volume is wanted for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct Access {
    mode: i32,
    pub read_only: bool,
    pub no_exec: bool,
}

impl Access {
    /// The access that a capability asks for, with the flag `readonly` of a publish.
    pub fn of(capability: Option<&VolumeCapability>, read_only: bool) -> Outcome<Access> {
        let missing = |what| Failure::invalid(format!("{what} is missing"));
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        if capability.block.is_some() {
            return Err(Failure::invalid("a tierfs is no block device; ask for volumeMode: Filesystem"));
        }
        let mount = capability.mount.as_ref().ok_or_else(|| missing("volume_capability.mount"))?;
        let mode = capability.access_mode.as_ref().map_or(0, |access| access.mode);
        if !MODES.contains(&mode) {
            return Err(Failure::invalid(format!("access mode {mode} is not known")));
        }
        let is_reader = matches!(mode, SINGLE_NODE_READER_ONLY | MULTI_NODE_READER_ONLY);
        let mut access = Access { mode, read_only: read_only || is_reader, no_exec: false };
        for flag in mount.mount_flags.iter().flat_map(|flags| flags.split(',')) {
            match flag {
                "ro" => access.read_only = true,
                "noexec" => access.no_exec = true,
                // Each mount of a volume is so.
                "rw" | "nosuid" | "nodev" => {}
                _ => {
                    let text =
                        "a mount option is not known; the options are ro, rw, noexec, nosuid and nodev";
                    return Err(Failure::invalid(text));
                }
            }
        }
        Ok(access)
    }

    /// Refuses writers on several nodes for a remote. One writer may turn out to be a reader: a publish says so.
    pub fn check_source(&self, is_remote: bool) -> Outcome<()> {
        let is_of_writers = matches!(self.mode, MULTI_NODE_SINGLE_WRITER | MULTI_NODE_MULTI_WRITER);
        if is_remote && is_of_writers && !self.read_only {
            return Err(Failure::invalid("a remote can only be read: ask for an access mode of readers"));
        }
        Ok(())
    }

    /// Whether a node may publish the volume at several targets.
    pub fn is_shared(&self) -> bool {
        matches!(
            self.mode,
            MULTI_NODE_READER_ONLY
                | MULTI_NODE_SINGLE_WRITER
                | MULTI_NODE_MULTI_WRITER
                | SINGLE_NODE_MULTI_WRITER
        )
    }

    pub fn to_json(&self) -> Value {
        json!({ "mode": self.mode, "read_only": self.read_only, "no_exec": self.no_exec })
    }

    pub fn from_json(value: &Value) -> Option<Access> {
        Some(Access {
            mode: i32::try_from(value.get("mode")?.as_i64()?).ok()?,
            read_only: value.get("read_only")?.as_bool()?,
            no_exec: value.get("no_exec")?.as_bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Access;
    use crate::csi::failure::Code;
    use crate::csi::messages::{AccessMode, Empty, MountVolume, VolumeCapability};

    fn capability(mode: i32, flags: &[&str]) -> VolumeCapability {
        let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mount = MountVolume { fs_type: "ext4".to_owned(), mount_flags };
        VolumeCapability { block: None, mount: Some(mount), access_mode: Some(AccessMode { mode }) }
    }

    #[test]
    fn modes_of_readers_and_the_option_ro_make_a_volume_read_only() {
        for (mode, flags, read_only, expected) in [
            (1, &[][..], false, false),
            (1, &[], true, true),
            (1, &["nosuid,ro"], false, true),
            (2, &[], false, true),
            (3, &["rw"], false, true),
            (5, &[], false, false),
        ] {
            let access = Access::of(Some(&capability(mode, flags)), read_only).unwrap();
            assert_eq!(access.read_only, expected, "{mode} {flags:?}");
            assert_eq!(Access::from_json(&access.to_json()), Some(access));
        }
    }

    #[test]
    fn block_volumes_unknown_modes_and_unknown_options_are_invalid() {
        let block = VolumeCapability { block: Some(Empty {}), ..capability(1, &[]) };
        for wrong in [None, Some(block), Some(capability(0, &[])), Some(capability(8, &[]))] {
            assert_eq!(Access::of(wrong.as_ref(), false).unwrap_err().code, Code::InvalidArgument);
        }
        // The value of an option may be a secret.
        let failure = Access::of(Some(&capability(1, &["password=hush"])), false).unwrap_err();
        assert!(!failure.text.contains("hush"), "{failure}");
    }
}
