//! Packed blocks: the width of an element, the number of elements, the payload. Payload, output and scratch memory end
//! just before a page that faults. If bit 2 of the width is set, exact differences: bits 3 and 4 choose the type.

use tierfs::codec::InstructionSet;
use tierfs::codec::difference::{add_difference_on, encode_difference_on};
use tierfs::codec::ladder::{Block, Scratch};
use tierfs::model::Dtype;

/// Memory that ends just before a page that faults.
struct Guarded {
    mapping: *mut libc::c_void,
    mapped: usize,
    begin: usize,
    len: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    fn new(len: usize) -> Guarded {
        let mapped = len.next_multiple_of(PAGE) + PAGE;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of its own; the last page is within it.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, kind, -1, 0) };
        assert_ne!(mapping, libc::MAP_FAILED, "mmap of {mapped} bytes");
        // SAFETY: as above.
        let guard = unsafe { libc::mprotect(mapping.byte_add(mapped - PAGE), PAGE, libc::PROT_NONE) };
        assert_eq!(guard, 0, "mprotect");
        Guarded { mapping, mapped, begin: mapped - PAGE - len, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range lies in the mapping, before the guard page, and is borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.cast::<u8>().add(self.begin), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which has no other user any more.
        unsafe { libc::munmap(self.mapping, self.mapped) };
    }
}

pub fn check(bytes: &[u8]) {
    let [kind, low, high, payload @ ..] = bytes else { return };
    // Mostly the number of elements in the header, so that this does not cause the refusal.
    let stated =
        payload.get(4..8).and_then(|n| n.first_chunk()).map_or(0, |n| u32::from_le_bytes(*n) as usize);
    let elements = match u16::from_le_bytes([*low, *high]) {
        0 => stated,
        other => usize::from(other),
    };
    if kind & 4 != 0 {
        let dtypes = [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::I16];
        return check_difference(dtypes[usize::from(kind >> 3) % 4], elements, payload);
    }
    let width = 1 << (kind % 4);
    let mut stored = Guarded::new(payload.len());
    stored.bytes().copy_from_slice(payload);
    let Ok(block) = Block::parse(width, elements, stored.bytes()) else { return };
    assert!(elements <= 65_536);
    let scratch_len = block.scratch_len();
    assert!(scratch_len <= 4 << 20, "{scratch_len} bytes of scratch");
    let mut whole = None;
    for set in InstructionSet::available() {
        let mut out = Guarded::new(elements * width);
        let mut scratch = Guarded::new(scratch_len);
        let decoded = block.decode(set, 0..elements, out.bytes(), scratch.bytes());
        let decoded = decoded.is_ok().then(|| out.bytes().to_vec());
        let first = whole.get_or_insert_with(|| decoded.clone());
        assert_eq!(*first, decoded, "{}", set.name());
        // Parts are checked by themselves: if the whole decodes, they are its bytes.
        for (begin, end) in
            [(0, 1), (elements / 3, elements / 2), (elements - 1, elements), (elements / 7, elements)]
        {
            let mut part = Guarded::new((end - begin) * width);
            let parted = block.decode(set, begin..end, part.bytes(), scratch.bytes());
            if let Some(whole) = first {
                parted.unwrap();
                assert_eq!(
                    part.bytes(),
                    &whole[begin * width..end * width],
                    "{begin}..{end} on {}",
                    set.name()
                );
            }
        }
    }
}

/// Adds a difference to a base. If that succeeds, the difference of the result from the base leads to the result too.
fn check_difference(dtype: Dtype, elements: usize, payload: &[u8]) {
    if elements > 65_537 {
        return;
    }
    let len = elements * dtype.bytes() as usize;
    let mut stored = Guarded::new(payload.len());
    stored.bytes().copy_from_slice(payload);
    let base: Vec<u8> = (0..len).map(|at| ((at * 151) >> 3) as u8).collect();
    let mut first = None;
    for set in InstructionSet::available() {
        let mut block = Guarded::new(len);
        block.bytes().copy_from_slice(&base);
        let added = add_difference_on(set, dtype, stored.bytes(), block.bytes(), &mut Scratch::new());
        let found = added.is_ok().then(|| block.bytes().to_vec());
        if found.is_none() {
            assert_eq!(block.bytes(), base, "{}", set.name());
        }
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{}", set.name());
        let Some(found) = found else { continue };
        let (mut again, mut scratch) = (Vec::new(), Scratch::new());
        assert!(encode_difference_on(set, dtype, &base, &found, &mut again, &mut scratch).unwrap());
        block.bytes().copy_from_slice(&base);
        add_difference_on(set, dtype, &again, block.bytes(), &mut scratch).unwrap();
        assert_eq!(block.bytes(), found, "{}", set.name());
    }
}
