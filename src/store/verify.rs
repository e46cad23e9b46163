//! Stored bytes against what the log says of them.

use crate::format::checksum;
use crate::format::record::Stored;
use crate::model::{Error, Result};
use crate::store::blocks::Block;
use crate::store::object::DIRTY;
use crate::store::read::OpenObject;

impl OpenObject {
    /// Checks block `index`, as the log says it, and tells what it stores: for `verify` and `fsck`.
    pub fn check(&self, index: u32) -> Result<Block> {
        let _reading = self.collection.begin_read();
        let cut = self.object.logged_cut();
        let (found, described) = {
            let blocks = self.object.blocks.read();
            (blocks.get(index, cut), self.object.described())
        };
        if found.is_none() && index >= described {
            // It was cut off, and the log does not say so yet.
            return Ok(Block { epoch: DIRTY, stored: Stored::ABSENT, since: 0 });
        }
        let block = self.known(index, found)?;
        if block.stored.len == 0 {
            self.read_origin(index, &mut vec![0; cut.len(index)])?;
        } else {
            let mut payload = vec![0; block.stored.len as usize];
            self.fetch(index, &block.stored, 0, &mut payload)?;
            self.verify(index, &block.stored, &payload)?;
        }
        if let Some(link) = self.object.factor_of(&block) {
            self.check_factor(&link)?;
        }
        if self.object.chain(index, block.epoch).is_some() {
            // What lies on a parent's block can be checked without that.
            let mut elements = vec![0; cut.len(index)];
            self.apply_chain(index, &block, &mut elements)?;
        }
        Ok(block)
    }

    pub(super) fn verify(&self, index: u32, stored: &Stored, payload: &[u8]) -> Result<()> {
        let found = checksum::of(payload);
        if found != stored.checksum {
            // Parts of it are not believed any more either.
            self.object.checked.clear(index);
            let (place, wanted) = (self.place(index, stored), stored.checksum);
            let text = format!("{place}: payload crc {found:#010x} but the log says {wanted:#010x}");
            return Err(self.wrong(index, stored, Error::corrupt(format!("{text}; run tierfs fsck"))));
        }
        self.object.checked.set(index);
        Ok(())
    }

    pub(super) fn file_place(&self, stored: &Stored) -> String {
        let path = self.collection.path_of_payload(&self.object, stored);
        format!("{path} at byte {}", stored.offset)
    }

    pub(super) fn place(&self, index: u32, stored: &Stored) -> String {
        format!("{}, block {index} of object {}", self.file_place(stored), self.object.entry.id)
    }
}
