//! Tensors that are stored as products of matrices of low rank. NumPy is the oracle.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use support::{Place, get, python_line, refused_set, run, set};

/// Makes a matrix of rank 8 with a little noise or, for rank 0, of noise only.
const MAKE: &str = "import numpy as np, sys
path, rank, rows, columns = sys.argv[1], *map(int, sys.argv[2:5])
r = np.random.default_rng(7)
m = r.standard_normal((rows, rank)) @ r.standard_normal((rank, columns)) if rank else 0
m = m + r.standard_normal((rows, columns)) * (1e-2 if rank else 1)
np.save(path, m.astype('<f4'))";

/// The distance of a file of floats from the matrix, and from its best approximation of a rank.
const COMPARE: &str = "import numpy as np, sys
m = np.load(sys.argv[1]).astype('f8')
found = np.fromfile(sys.argv[2], '<f4').reshape(m.shape)
u, s, v = np.linalg.svd(m, full_matrices=False)
k = int(sys.argv[3])
best = (u[:, :k] * s[:k]) @ v[:k]
energy = np.cumsum(s ** 2) / np.sum(s ** 2)
print(abs(found - m).max(), np.sqrt(((found - m) ** 2).mean()), abs(found - best).max(), energy[k - 2] < 0.999 <= energy[k - 1])";

fn matrix(place: &Place, rank: &str, rows: &str, columns: &str) -> std::path::PathBuf {
    let path = place.path("m.npy");
    python_line(MAKE, [path.as_os_str(), rank.as_ref(), rows.as_ref(), columns.as_ref()]);
    path
}

fn compared(source: &Path, found: &Path, rank: &str) -> (f64, f64, f64, bool) {
    let line = python_line(COMPARE, [source.as_os_str(), found.as_os_str(), rank.as_ref()]);
    let mut words = line.split_whitespace();
    let mut number = || words.next().unwrap().parse().unwrap();
    let (most, rms, from_best) = (number(), number(), number());
    (most, rms, from_best, words.next() == Some("True"))
}

#[test]
fn the_smallest_rank_that_reaches_the_energy_is_found_with_its_measured_error() {
    for (rows, columns) in [("512", "512"), ("700", "300"), ("300", "700")] {
        let place = Place::new();
        let source = matrix(&place, "8", rows, columns);
        place.import("t/c", &[&source], &[]);
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/m");
        set(&tensor, "reconstruct", "factor:energy=0.999").unwrap();
        assert!(refused_set(&tensor, "evict", "1", Errno::PERM).contains("lossy"));
        set(&tensor, "lossy", "allow").unwrap();
        set(&tensor, "evict", "1").unwrap();
        assert_eq!((get(&tensor, "tier"), get(&tensor, "reconstruct")), ("absent".into(), "factor".into()));
        let stored: u64 = get(&tensor, "bytes_stored").parse().unwrap();
        let (m, n): (u64, u64) = (rows.parse().unwrap(), columns.parse().unwrap());
        assert_eq!(stored, 32 + 4 * 8 * (m + 1 + n), "rank 8");
        assert!(stored * 20 < m * n * 4);
        let found = place.write("found", fs::read(&tensor).unwrap());
        let (most, rms, from_best, is_smallest) = compared(&source, &found, "8");
        assert!(is_smallest);
        assert!(from_best < 1e-3, "{from_best} from the best matrix of the rank");
        let error = get(&tensor, "error");
        let shown = |name: &str| -> f64 {
            error.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap().parse().unwrap()
        };
        assert!((shown("max=") - most).abs() < most * 1e-5, "{error}, {most}");
        assert!((shown("rms=") - rms).abs() < rms * 1e-5, "{error}, {rms}");
        assert!(refused_set(&tensor, "tier", "exact", Errno::INVAL).contains("more precise"));
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/m");
        let before = fs::read(&found).unwrap();
        assert_eq!(fs::read(&tensor).unwrap(), before);
        // One block is written: the others are still rows of the product.
        let file = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"written!", 20_000).unwrap();
        drop(file);
        let mut wanted = before;
        wanted[20_000..20_008].copy_from_slice(b"written!");
        assert_eq!(get(&tensor, "tier"), "mixed");
        assert_eq!(fs::read(&tensor).unwrap(), wanted);
        mounted.kill();
        drop(mounted);
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/m");
        assert_eq!(fs::read(&tensor).unwrap(), wanted);
        set(&tensor, "tier", "q8").unwrap();
        assert_eq!(get(&tensor, "tier"), "q8");
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}

#[test]
fn a_matrix_of_noise_is_not_factored_and_stays_unchanged() {
    let place = Place::new();
    let source = matrix(&place, "0", "256", "256");
    place.import("t/c", &[&source], &["--reconstruct", "factor"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/m");
    assert_eq!(get(&tensor, "tier"), "exact");
    let before = fs::read(&tensor).unwrap();
    for how in ["factor", "factor:energy=1", "factor:rank=200", "factor:rank=257"] {
        set(&tensor, "reconstruct", how).unwrap();
        assert!(refused_set(&tensor, "evict", "1", Errno::INVAL).contains("factors"), "{how}");
    }
    for wrong in ["factor:rank=0", "factor:energy=1.5", "factor:energy=0", "factor:", "facto", "factor:rank"]
    {
        assert!(refused_set(&tensor, "reconstruct", wrong, Errno::INVAL).contains("reconstruct"), "{wrong}");
    }
    assert_eq!(fs::read(&tensor).unwrap(), before);
    set(&tensor, "reconstruct", "factor:rank=3").unwrap();
    set(&tensor, "evict", "1").unwrap();
    assert_eq!(get(&tensor, "bytes_stored"), (32 + 4 * 3 * 513).to_string());
    // The product does not contain discarded blocks any more.
    set(&tensor, "evict", "discard").unwrap();
    assert_eq!(fs::read(&tensor).unwrap_err().raw_os_error(), Some(Errno::NODATA.raw_os_error()));
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn flipped_bits_of_factors_are_errors() {
    let place = Place::new();
    let source = matrix(&place, "8", "256", "256");
    place.import("t/c", &[&source], &["--reconstruct", "factor:rank=8"]);
    let factors = place.store().join("t/c/factor.dat");
    let whole = fs::read(&factors).unwrap();
    for at in [0, 17, 24, 100, 32 + 4 * 8 * 513 - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(&factors, &flipped).unwrap();
        let answer = run(["fsck".as_ref(), place.store().as_os_str()]);
        assert!(answer.code == Some(3) && answer.out.contains("factor.dat"), "{}", answer.out);
        let mounted = place.mount(&["--read-only"]);
        let read = fs::read(mounted.path("t/c/m"));
        assert_eq!(read.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()), "byte {at}");
    }
    fs::write(&factors, &whole[..1000]).unwrap();
    let mounted = place.mount(&["--read-only"]);
    assert_eq!(fs::read(mounted.path("t/c/m")).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
}
