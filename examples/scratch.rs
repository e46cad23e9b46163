use std::sync::Arc;
use std::time::Instant;
use tierfs::format::catalog::*;
use tierfs::format::record::*;
use tierfs::model::*;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::log::Log;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(tierfs::store::disk::files::FileDisk::create(dir.as_ref()).unwrap());
    let n: u64 = 1_000_000;
    for (name, objects, run) in [
        ("one", 1u64, false),
        ("many", 300, false),
        ("mix", 300, false),
        ("run", 1, true),
        ("files", 100_000, true),
    ] {
        let path = format!("{name}.log");
        let _ = disk.remove_file(&path);
        let file = disk.open(&path, Open::Create).unwrap();
        let mut log = Log::create(file, StoreId(5), 1).unwrap();
        let per = n / objects;
        let mut ids = Vec::new();
        let mut batch = log.begin();
        for o in 0..objects {
            let id = ObjectId::of(TensorId(3), SeedId(0), o);
            ids.push(id);
            batch.entry(Entry::Object(ObjectEntry {
                id,
                tensor: TensorId(3),
                seed: SeedId(0),
                creation: o,
                dtype: Dtype::Bf16,
                bytes: per * 16384,
                block_bytes: 16384,
                home: Some(Home { file: 1, offset: 0 }),
            }));
        }
        log.commit(&batch).unwrap();
        let described = Described {
            dtype: Dtype::Bf16,
            shape: Shape::new(&[per * 8192]).unwrap(),
            parent: None,
            reconstruct: 0,
        };
        let mut batch = log.begin();
        let stored = |i: u64| Stored {
            tier: Tier::Q5,
            scale: 1.0,
            checksum: i as u32,
            offset: i * 5632,
            len: 5632,
            in_data: false,
        };
        if run {
            for id in &ids {
                let sums: Vec<u32> = (0..per as u32).collect();
                batch.run(&sums, |len, checksum| Record::CreateRun {
                    object: *id,
                    block: 0,
                    described: described.clone(),
                    stored: Stored { tier: Tier::Exact, scale: 0.0, checksum, offset: 0, len, in_data: true },
                    created_at: 1,
                });
            }
            log.commit(&batch).unwrap();
        } else {
            for i in 0..n {
                let (o, b) =
                    if name == "mix" { (i % objects, i / objects) } else { (i / per % objects, i % per) };
                if b >= per {
                    continue;
                }
                batch.record(Record::Create {
                    object: ids[o as usize],
                    block: b as u32,
                    described: described.clone(),
                    stored: stored(i),
                    created_at: 1,
                });
                if batch.slots() > 32000 {
                    log.commit(&batch).unwrap();
                    batch = log.begin();
                }
            }
            log.commit(&batch).unwrap();
        }
        let file = disk.open(&path, Open::Read).unwrap();
        for _ in 0..5 {
            let t = Instant::now();
            let r = tierfs::store::replay::replay(&file, StoreId(5)).unwrap();
            let e = t.elapsed();
            let t = Instant::now();
            assert!(r.damage.is_none(), "{:?}", r.damage);
            drop(r);
            println!("{name}: {e:?}, drop {:?}", t.elapsed());
        }
    }
}
