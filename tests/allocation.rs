//! The codecs' reading half allocates nothing: counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tierfs::codec::{InstructionSet, payload_len};
use tierfs::model::{Dtype, Tier};

/// The system's allocator, counting what each thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1_u8; 100]))), 1);
}

#[test]
fn records_of_batches_are_borrowed_and_written_without_allocation_at_any_alignment() {
    use tierfs::format::cgeb::{AuxEncoding, Header, Layout as Order, NewRecord, Record};
    use tierfs::format::cgei::{BorrowedIndex, Index};
    let (vector, weights) = (vec![0.5; 1536], [0.25; 8]);
    for layout in [Order::One, Order::TwoBig, Order::TwoLittle] {
        let record = NewRecord {
            layout,
            vector: &vector,
            weights: &weights,
            selected: &[1, 2],
            aux: b"aux",
            aux_encoding: AuxEncoding::Raw,
            pipeline_latency_us: 1,
            own_hash: (layout == Order::One).then_some(7),
        };
        let mut room = vec![0; 7000];
        for skip in 0..9 {
            let place = &mut room[skip..];
            assert_eq!(allocations(|| assert_eq!(record.write_into(place), Ok(6245))), 0);
            let count = allocations(|| {
                Header::parse(place).unwrap();
                let record = Record::borrow(place).unwrap();
                record.verify().unwrap();
                assert_eq!(record.vector.iter().sum::<f32>(), 768.0);
            });
            assert_eq!(count, 0);
        }
    }
    let bytes = Index { data_hash: 5, offsets: vec![0, 8192] }.write().unwrap();
    let count = allocations(|| {
        let index = BorrowedIndex::borrow(&bytes).unwrap();
        index.check().unwrap();
        assert_eq!(index.offset(1), Some(8192));
    });
    assert_eq!(count, 0);
}

#[test]
fn decode_pack_unpack_and_max_abs_do_not_allocate() {
    for set in InstructionSet::available() {
        for n in [4096, 1000] {
            for tier in Tier::ENCODED {
                let payload = vec![0; payload_len(tier, n).unwrap()];
                let mut out = vec![0; 4 * n];
                for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                    let out = &mut out[..n * dtype.bytes() as usize];
                    assert_eq!(allocations(|| set.decode_groups(tier, dtype, &payload, out).unwrap()), 0);
                }
            }
            for bits in [3, 5, 7, 8] {
                let mut codes = vec![1; n];
                let mut stream = vec![0; (n * usize::from(bits)).div_ceil(8)];
                assert_eq!(allocations(|| set.pack(bits, &codes, &mut stream).unwrap()), 0);
                assert_eq!(allocations(|| set.unpack(bits, &stream, &mut codes).unwrap()), 0);
            }
            let values = vec![1.0; n];
            assert_eq!(allocations(|| assert_eq!(set.max_abs(&values), 1.0)), 0);
        }
    }
}
