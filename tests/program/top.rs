//! `tierfs top`: what the screen of a terminal emulator shows, its keys, and the text without a terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use support::{Mounted, PATIENCE, Place, Random, ended, imported, npy_file, run, tierfs, wait_until};

use crate::lease::Lease;

/// A program in a terminal whose screen an emulator keeps.
struct Terminal {
    child: Child,
    keys: File,
    emulator: Arc<Mutex<vt100::Parser>>,
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Terminal {
    /// Runs `tierfs top` on a mount, with a look each fifth of a second.
    fn top(mounted: &Mounted, columns: u16, rows: u16) -> Terminal {
        let keys = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&keys).unwrap();
        rustix::pty::unlockpt(&keys).unwrap();
        rustix::termios::tcsetwinsize(&keys, size(columns, rows)).unwrap();
        let path = rustix::pty::ptsname(&keys, Vec::new()).unwrap();
        let screen = rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let screen = File::from(screen);
        let mut command = tierfs();
        command.arg("top").arg(&mounted.mountpoint).args(["--interval", "0.2"]);
        let [stdin, stdout] = [&screen, &screen].map(|screen| Stdio::from(screen.try_clone().unwrap()));
        command.stdin(stdin).stdout(stdout).stderr(screen);
        // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
            })
        };
        let child = command.spawn().unwrap();
        // The command holds the terminal's other end open, which would hide the end of the program.
        drop(command);
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(
            NonZeroU16::new(rows).unwrap(),
            NonZeroU16::new(columns).unwrap(),
            0,
        )));
        let (keys, shown) = (File::from(keys), emulator.clone());
        let mut output = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with an error once no program has the terminal.
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..read]);
            }
        });
        Terminal { child, keys, emulator }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.emulator
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(NonZeroU16::new(rows).unwrap(), NonZeroU16::new(columns).unwrap());
        rustix::termios::tcsetwinsize(&self.keys, size(columns, rows)).unwrap();
    }

    fn rows(&self) -> Vec<String> {
        let emulator = self.emulator.lock().unwrap();
        let (_, columns) = emulator.screen().size();
        emulator.screen().rows(0, columns.get()).collect()
    }

    /// Waits until the screen shows each of these texts.
    #[track_caller]
    fn shows(&self, texts: &[&str]) {
        let until = Instant::now() + PATIENCE;
        loop {
            let screen = self.rows().join("\n");
            let Some(missing) = texts.iter().find(|text| !screen.contains(**text)) else { return };
            assert!(Instant::now() < until, "{missing:?} is not shown:\n{screen}");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }

    /// Whether the program shows a screen of its own instead of the lines of the shell.
    fn has_own_screen(&self) -> bool {
        self.emulator.lock().unwrap().screen().alternate_screen()
    }
}

#[test]
fn top_shows_a_mount_in_a_terminal_and_obeys_keys() {
    let (place, _) = imported(&["--tier", "q5"]);
    let mounted = place.mount(&["--passthrough", "off"]);
    let mut terminal = Terminal::top(&mounted, 80, 24);
    terminal.shows(&[
        "tierfs top",
        "Requests, by rate",
        "Tiers: ",
        "Daemon",
        "Hottest tensors",
        "Jobs",
        "q quit",
    ]);
    assert!(terminal.has_own_screen());
    assert!(terminal.rows()[23].contains("q quit") && terminal.rows()[22].starts_with('└'));
    fs::read(mounted.path("demo/model/x.npy")).unwrap();
    terminal.shows(&["read ", "exact  "]);
    terminal.press("s");
    terminal.shows(&["Requests, slowest first"]);
    terminal.resize(200, 60);
    terminal.shows(&["demo/model/x "]);
    wait_until("the last line of the large terminal", || terminal.rows()[59].contains("q quit"));
    terminal.press("q");
    assert_eq!(ended(&mut terminal.child, "tierfs top"), Some(0));
    wait_until("the screen of the shell", || !terminal.has_own_screen());
}

#[test]
fn top_cancels_the_chosen_job_after_a_question() {
    let place = Place::new();
    let source = place.write("model/b.npy", npy_file(&Random(2).floats(1000)));
    let mounted = place.mount(&["--create"]);
    let mut terminal = Terminal::top(&mounted, 80, 24);
    terminal.shows(&["q quit"]);
    let lease = Lease::on(&source);
    place.import("t/c", &[&place.path("model")], &["--detach"]);
    terminal.shows(&["> ", "import"]);
    terminal.press("c");
    terminal.shows(&["cancel job 1? y cancels it"]);
    terminal.press("y");
    terminal.shows(&["job 1 is being cancelled"]);
    drop(lease);
    terminal.shows(&["cancelled"]);
    let jobs = || fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
    wait_until("the end of the job", || jobs().contains("t/c cancelled"));
    // Ctrl-C leaves too.
    terminal.press("\u{3}");
    assert_eq!(ended(&mut terminal.child, "tierfs top"), Some(0));
}

#[test]
fn top_without_a_terminal_prints_one_picture_of_what_the_control_files_say() {
    let (place, _) = imported(&["--tier", "q5"]);
    let mounted = place.mount(&[]);
    let stats = mounted.stats();
    let text = run(["top".as_ref(), mounted.mountpoint.as_os_str()]).ok();
    assert!(!text.contains('\u{1b}'), "{text}");
    assert_eq!(stats["collections"], 1);
    assert!(text.contains(&format!(", 1 collection, {} files", stats["files"])), "{text}");
    for tier in stats["tiers"].as_object().unwrap().keys() {
        assert!(text.lines().any(|line| line.starts_with(&format!("│{tier} "))), "{tier}: {text}");
    }
    assert_eq!(text.lines().count(), 40);
    let once = run(["top".as_ref(), "--once".as_ref(), mounted.path("demo").as_os_str()]).ok();
    assert!(once.contains("Requests, by rate"), "{once}");
    let of_store = run(["top".as_ref(), place.store().as_os_str()]).ok();
    assert!(of_store.contains(", 1 collection, "), "{of_store}");
    run(["top".as_ref(), place.path("").as_os_str()]).failed(1, &["is not on a tierfs mount"]);
}
