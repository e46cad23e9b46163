//! Arrays of NumPy's records of two raw bytes, `|V2`: bytes, until a person declares them bf16.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Fixture, Place, assert_same, get, python_line, set};

const MAKE: &str = "import sys, numpy as np\n\
    records = np.random.default_rng(1).integers(97, 123, (512, 256, 2), dtype='u1').view('V2').reshape(512, 256)\n\
    assert records.dtype.str == '|V2'\n\
    np.save(sys.argv[1] + '/records.npy', records)\n\
    np.savez(sys.argv[1] + '/more.npz', r=records, b=records.view('u1').reshape(512, 512))\n";

/// The array as bf16, of the forms and of the file itself.
const COMPARE: &str = "import sys, ml_dtypes, numpy as np\n\
    source, folder = sys.argv[1:]\n\
    records = np.load(source + '/records.npy')\n\
    wanted = records.view(ml_dtypes.bfloat16).astype('f4')\n\
    assert b'<V2' in open(folder + '/.as/npy/records.npy', 'rb').read(128)\n\
    for name in ('records.npy', '.tensors/records'):\n\
    \x20   path = folder + '/.as/f32/' + name\n\
    \x20   found = np.load(path) if name.endswith('npy') else np.fromfile(path, '<f4').reshape(512, 256)\n\
    \x20   assert found.dtype == 'f4' and found.shape == (512, 256) and np.array_equal(found, wanted), name\n\
    assert open(source + '/records.npy', 'rb').read() == open(folder + '/records.npy', 'rb').read()\n";

fn made(place: &Place) -> std::path::PathBuf {
    let folder = place.path("arrays");
    fs::create_dir(&folder).unwrap();
    python_line(MAKE, [&folder]);
    folder
}

fn shown(path: &Path) -> (String, String) {
    (get(path, "dtype"), get(path, "shape"))
}

fn pair(dtype: &str, shape: &str) -> (String, String) {
    (dtype.to_owned(), shape.to_owned())
}

#[test]
fn raw_records_are_bytes_that_no_move_takes() {
    let place = Place::new();
    let folder = made(&place);
    place.import("t/c", &[&folder], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    for name in ["records.npy", "more.npz"] {
        assert_same(
            &fs::read(mounted.path("t/c").join(name)).unwrap(),
            &fs::read(folder.join(name)).unwrap(),
            name,
        );
    }
    let tensor = mounted.path("t/c/.tensors/records");
    assert_eq!(shown(&tensor), pair("u8", "512x256x2"));
    assert_eq!(get(&tensor, "tier"), "exact");
    assert_eq!(shown(&mounted.path("t/c/.tensors/r")), pair("u8", "512x256x2"));
    let cast = mounted.path("t/c/.as/f32/records.npy");
    python_line(
        "import sys, numpy as np\nfound = np.load(sys.argv[1])\nassert found.dtype == 'u1' and found.shape == (512, 256, 2)\n",
        [&cast],
    );
}

#[test]
fn a_person_declares_raw_records_bf16_and_they_stay_so() {
    let mut fixture = Fixture::new();
    let folder = made(&fixture.place);
    fs::copy(folder.join("records.npy"), fixture.path("records.npy")).unwrap();
    let compare = |fixture: &Fixture| {
        assert_eq!(shown(&fixture.path(".tensors/records")), pair("bf16", "512x256"));
        python_line(COMPARE, [folder.as_os_str(), fixture.path("").as_os_str()]);
    };
    // Cached pages of the forms before.
    fs::read(fixture.path(".as/f32/records.npy")).unwrap();
    let open = fs::File::open(fixture.path(".as/f32/records.npy")).unwrap();
    set(&fixture.path(".tensors/records"), "dtype", "bf16").unwrap();
    compare(&fixture);
    drop(open);
    fixture.remount();
    compare(&fixture);
    fs::rename(fixture.path("records.npy"), fixture.path("other.npy")).unwrap();
    fs::rename(fixture.path("other.npy"), fixture.path("records.npy")).unwrap();
    compare(&fixture);
    // The header is written again, as it was, and an element through the container.
    let bytes = fs::read(folder.join("records.npy")).unwrap();
    let file = fs::OpenOptions::new().write(true).open(fixture.path("records.npy")).unwrap();
    file.write_all_at(&bytes[..300], 0).unwrap();
    drop(file);
    compare(&fixture);
    // They have tiers now, and are bytes again only in exact blocks.
    set(&fixture.path(".tensors/records"), "lossy", "allow").unwrap();
    set(&fixture.path(".tensors/records"), "tier", "q8:all").unwrap();
    assert_eq!(get(&fixture.path(".tensors/records"), "tier"), "q8");
    assert!(set(&fixture.path(".tensors/records"), "dtype", "u8").is_err());
    fs::remove_file(fixture.path("records.npy")).unwrap();
    fs::copy(folder.join("records.npy"), fixture.path("records.npy")).unwrap();
    assert_eq!(shown(&fixture.path(".tensors/records")), pair("u8", "512x256x2"));
    // On the file itself, and back.
    set(&fixture.path("records.npy"), "dtype", "bf16").unwrap();
    compare(&fixture);
    set(&fixture.path(".tensors/records"), "dtype", "u8").unwrap();
    assert_eq!(shown(&fixture.path(".tensors/records")), pair("u8", "512x256x2"));
}

#[test]
fn an_array_of_an_archive_is_declared_alone_and_other_types_stay_as_the_file_says() {
    let fixture = Fixture::new();
    let folder = made(&fixture.place);
    fs::copy(folder.join("more.npz"), fixture.path("more.npz")).unwrap();
    let [records, bytes] = ["r", "b"].map(|name| fixture.path(".tensors").join(name));
    set(&records, "dtype", "bf16").unwrap();
    assert_eq!(shown(&records), pair("bf16", "512x256"));
    assert_eq!(shown(&bytes), pair("u8", "512x512"));
    for (path, attribute, value) in [
        (&bytes, "dtype", "bf16"),
        (&records, "dtype", "f16"),
        (&records, "shape", "131072"),
        (&bytes, "dtype", "i8"),
    ] {
        let error = set(path, attribute, value).unwrap_err();
        assert_eq!(error, rustix::io::Errno::PERM, "{attribute}={value}");
    }
    let archive = [OsStr::new("t"), fixture.path("more.npz").as_os_str()].map(OsStr::to_owned);
    python_line(
        "import sys, numpy as np\nwith np.load(sys.argv[2]) as file: assert file['r'].dtype.str == '|V2' and file['b'].shape == (512, 512)\n",
        archive,
    );
}
