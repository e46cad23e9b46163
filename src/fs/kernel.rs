//! Capabilities that a mount requests from the kernel.

use std::io;

use fuser::{InitFlags, KernelConfig};

use crate::fs::transport::{Offer, PAYLOAD_BYTES};

/// Maximal number of pending background requests, such as read-ahead.
const BACKGROUND_MAX: u16 = 96;

/// Requests the capabilities that make the mount fast; those that the kernel lacks are skipped.
/// Returns whether passthrough is available for file systems stacked up to `stack_depth`; 0 disables
/// it. The kernel takes the offer of rings if it can use them.
pub(super) fn ask(config: &mut KernelConfig, stack_depth: u32, offer: &Offer) -> io::Result<bool> {
    let wanted = [
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        InitFlags::FUSE_MAX_PAGES,
        InitFlags::FUSE_CACHE_SYMLINKS,
    ];
    // Capabilities that the kernel lacks are skipped.
    let known = config.capabilities();
    for flag in wanted.into_iter().filter(|flag| known.contains(*flag)) {
        config.add_capabilities(flag).map_err(|unknown| io::Error::other(format!("{unknown:?}")))?;
    }
    config.set_max_background(BACKGROUND_MAX).map_err(|most| io::Error::other(format!("at most {most}")))?;
    if offer.is_made() && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok() {
        config
            .set_max_write(PAYLOAD_BYTES as u32)
            .map_err(|most| io::Error::other(format!("at most {most}")))?;
        offer.take();
    }
    let can = stack_depth > 0
        && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(stack_depth).is_ok();
    Ok(can)
}
