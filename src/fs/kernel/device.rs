//! Requests that arrive by the device: threads that read it, each by a descriptor and with a buffer of its own. Long ones go
//! on to other threads (`long_requests.rs`).
//!
//! The threads can rest, so that another daemon goes on with the mount. A request that a resting thread reads waits for the
//! end of the rest. If that never comes, the next daemon, before it reads, has the kernel give all requests again that were
//! read and not answered (`notify::resend_requests`). The kernel gives up those of a descriptor that is closed, so all
//! descriptors of a mount go to the next daemon.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use super::errno;
use super::long_requests::{OtherThreads, RequestBuffer};
use super::notify::resend_requests;
use super::reply::Reply;
use super::request::{Operation, Request};
use super::sender::{Route, ToDevice};
use super::service::Service;

/// The group of the ioctls of the device.
pub(super) const IOCTL_GROUP: u8 = 229;
/// FUSE_DEV_IOC_CLONE, which takes the number of a descriptor.
const CLONE: Opcode = opcode::read::<u32>(IOCTL_GROUP, 0);

/// Descriptors of a mount at most, as many as one message between processes takes. More threads share them.
const DESCRIPTORS_MAX: usize = 240;
/// How often it is looked whether all requests are answered.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The descriptors of a mount's device, from each of which requests are read independently.
pub(in crate::fs) struct Devices(Vec<OwnedFd>);

impl Devices {
    /// The descriptors of a new mount, for as many threads.
    pub fn new(device: &OwnedFd, threads: usize) -> io::Result<Devices> {
        let mut descriptors = vec![device.try_clone()?];
        for _ in 1..threads.min(DESCRIPTORS_MAX) {
            descriptors.push(cloned(device)?);
        }
        Ok(Devices(descriptors))
    }

    /// The descriptors that an earlier daemon had.
    pub fn taken_over(descriptors: Vec<OwnedFd>) -> Devices {
        Devices(descriptors)
    }

    /// Further numbers of the descriptors, for another process.
    pub fn duplicates(&self) -> io::Result<Vec<OwnedFd>> {
        self.0.iter().map(OwnedFd::try_clone).collect()
    }
}

/// The threads that answer the requests of a mount.
pub(in crate::fs) struct DeviceThreads {
    devices: Devices,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// That of each thread. Each reply that is not sent yet has a reference to one.
    descriptors: Vec<Arc<OwnedFd>>,
    gate: Arc<Gate>,
}

/// Lets threads rest. It is closed at first.
struct Gate {
    is_closed: AtomicBool,
    /// Taken to wait, and to open or close the gate.
    turn: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    fn closed() -> Gate {
        Gate { is_closed: AtomicBool::new(true), turn: Mutex::default(), opened: Condvar::new() }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Waits until it is open. Calls `make` before it may be closed again.
    fn pass<T>(&self, make: impl FnOnce() -> T) -> T {
        let mut turn = self.turn.lock();
        while self.is_closed() {
            self.opened.wait(&mut turn);
        }
        make()
    }

    fn close(&self) {
        let _turn = self.turn.lock();
        self.is_closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn open(&self) {
        let _turn = self.turn.lock();
        self.is_closed.store(false, Ordering::SeqCst);
        self.opened.notify_all();
    }
}

/// Counts the threads that run.
struct Running<F: Fn()> {
    count: Arc<AtomicUsize>,
    /// Called when the last one ends.
    ended: Arc<F>,
}

impl<F: Fn()> Drop for Running<F> {
    fn drop(&mut self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.ended)();
        }
    }
}

impl DeviceThreads {
    /// Starts as many threads, which rest until they are told to [`go_on`](Self::go_on). `ended` is called when the last one
    /// ends.
    pub fn start(
        devices: Devices,
        count: usize,
        service: &Arc<impl Service>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<DeviceThreads> {
        let (mut descriptors, gate) = (Vec::new(), Arc::new(Gate::closed()));
        for device in devices.0.iter().cycle().take(count) {
            descriptors.push(Arc::new(device.try_clone()?));
        }
        let others = Arc::new(OtherThreads::new(service));
        let answered = others.clone();
        let ended = move || {
            answered.end();
            ended();
        };
        let (running, ended) = (Arc::new(AtomicUsize::new(descriptors.len())), Arc::new(ended));
        let mut threads = Vec::new();
        for (place, descriptor) in descriptors.iter().cloned().enumerate() {
            let (others, gate) = (others.clone(), gate.clone());
            let running = Running { count: running.clone(), ended: ended.clone() };
            let thread = std::thread::Builder::new().name(format!("device-{place}"));
            threads.push(thread.spawn(move || {
                let _running = running;
                serve(&descriptor, &others, &gate)
            })?);
        }
        Ok(DeviceThreads { devices, threads, descriptors, gate })
    }

    /// The descriptors of the mount.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Lets the threads rest, and waits until the requests are answered that they have read. `false` if that takes longer
    /// than `patience`; the threads rest all the same.
    pub fn rest(&self, patience: Duration) -> bool {
        self.gate.close();
        let until = Instant::now() + patience;
        // One reference is here, one with the thread.
        while self.descriptors.iter().any(|descriptor| Arc::strong_count(descriptor) > 2) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// The requests that are not answered, without those that resting threads have read.
    pub fn unanswered(&self) -> usize {
        self.descriptors.iter().map(|descriptor| Arc::strong_count(descriptor).saturating_sub(2)).sum()
    }

    /// Lets the threads go on, with the requests that they have read while they rested.
    pub fn go_on(&self) {
        self.gate.open();
    }

    /// Waits for the threads. Returns the first error of one.
    pub fn join(self) -> io::Result<()> {
        let panicked = |_| Err(io::Error::other("a thread of requests panicked"));
        let results: Vec<_> =
            self.threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        results.into_iter().collect()
    }
}

/// Another descriptor of the same mount, from which requests can be read independently.
fn cloned(device: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = OwnedFd::from(OpenOptions::new().read(true).write(true).open("/dev/fuse")?);
    let number = device.as_raw_fd().cast_unsigned();
    // SAFETY: the ioctl reads one u32, the number of a descriptor that `device` keeps open.
    unsafe { ioctl(&clone, Setter::<CLONE, u32>::new(number)) }?;
    Ok(clone)
}

/// Answers the reads and writes that wait with EIO. Other requests wait on, also reads past the page cache, for which no page
/// is kept. The caller alone reads the device. The kernel gives the next daemon the others as if one had read them before: a
/// change of names among them is EIO then ([`is_resent`](super::notify::is_resent)), although nobody has begun it.
pub(in crate::fs) fn fail_reads_and_writes(device: &OwnedFd) -> io::Result<()> {
    resend_requests(device)?;
    let (mut buffer, device) = (RequestBuffer::new(), Arc::new(device.try_clone()?));
    let flags = rustix::fs::fcntl_getfl(&device)?;
    rustix::fs::fcntl_setfl(&device, flags | rustix::fs::OFlags::NONBLOCK)?;
    while let Ok(len) = rustix::io::read(&device, buffer.room()) {
        if let Ok(request) = Request::parse(buffer.first(len))
            && match request.operation {
                Operation::Read { flags, .. } => !flags.is_direct(),
                Operation::Write { .. } => true,
                _ => false,
            }
        {
            Reply::new(request.unique, Route::Device(ToDevice::new(device.clone())))
                .error(errno::NOT_ANSWERED);
        }
    }
    rustix::fs::fcntl_setfl(&device, flags)?;
    Ok(())
}

/// Answers requests until the mount ends.
fn serve<S: Service>(device: &Arc<OwnedFd>, others: &OtherThreads<S>, gate: &Gate) -> io::Result<()> {
    let mut buffer = RequestBuffer::new();
    gate.pass(|| ());
    loop {
        let len = match rustix::io::read(device, buffer.room()) {
            Ok(0) | Err(Errno::NODEV) => return Ok(()),
            Ok(len) => len,
            // A signal, or a request whose program was killed meanwhile.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        let route = Route::Device(ToDevice::new(device.clone()));
        // `rest` closes the gate before it looks for references.
        fence(Ordering::SeqCst);
        let route = if gate.is_closed() {
            drop(route);
            gate.pass(|| Route::Device(ToDevice::new(device.clone())))
        } else {
            route
        };
        buffer = others.answer(buffer, len, route);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::{Gate, OtherThreads, serve};
    use crate::fs::kernel::errno;
    use crate::fs::kernel::{Operation, Reply, Request, Service};

    /// Fills the place of a read, and forgets to answer statfs.
    #[derive(Default)]
    struct Toy {
        places: Mutex<Vec<usize>>,
    }

    impl Service for Toy {
        fn answer(&self, request: Request<'_>, mut reply: Reply) {
            match request.operation {
                Operation::Read { size, .. } => {
                    let place = reply.place(size).unwrap();
                    place.fill(7);
                    self.places.lock().push(place.as_ptr().addr());
                    reply.placed(size as usize / 2);
                }
                Operation::Statfs => drop(reply),
                Operation::Forget { .. } => reply.withhold(),
                Operation::ReadLink => reply.data(b"target"),
                _ => reply.error(errno::NOT_SERVED),
            }
        }
    }

    fn request(opcode: u32, unique: u64, arguments: &[u8]) -> Vec<u8> {
        let head = [40 + arguments.len() as u32, opcode].map(u32::to_ne_bytes).concat();
        [&head[..], &unique.to_ne_bytes(), &[0; 24], arguments].concat()
    }

    /// Error number, number of the request, and the rest.
    fn parts(reply: &[u8]) -> (i32, u64, Vec<u8>) {
        assert_eq!(reply[..4], (reply.len() as u32).to_ne_bytes());
        let error = i32::from_ne_bytes(reply[4..8].try_into().unwrap());
        (error, u64::from_ne_bytes(reply[8..16].try_into().unwrap()), reply[16..].to_vec())
    }

    #[test]
    fn each_request_of_a_descriptor_gets_one_reply_in_one_piece_from_one_buffer() {
        let (device, kernel) = UnixDatagram::pair().unwrap();
        let end = device.try_clone().unwrap();
        let (device, toy) = (Arc::new(OwnedFd::from(device)), Arc::new(Toy::default()));
        let service = toy.clone();
        let others = OtherThreads::new(&service);
        let gate = Gate::closed();
        gate.open();
        let thread = std::thread::spawn(move || serve(&device, &others, &gate));
        let reading = [&[0; 16][..], &9000_u32.to_ne_bytes(), &[0; 20]].concat();
        let requests = [
            request(15, 1, &reading),
            request(2, 2, &[0; 8]),
            request(5, 3, &[]),
            request(17, 4, &[]),
            request(15, 5, &reading),
            request(99, 6, &[]),
            // Cut off: with a header, and without one.
            request(15, 7, &[0; 8]),
            vec![1, 2, 3],
            request(5, 8, &[]),
        ];
        requests.iter().for_each(|request| assert_eq!(kernel.send(request).unwrap(), request.len()));
        let half = vec![7; 4500];
        let expected = [
            (0, 1, half.clone()),
            (0, 3, b"target".to_vec()),
            (-errno::NOT_ANSWERED.number(), 4, Vec::new()),
            (0, 5, half),
            (-errno::NOT_SERVED.number(), 6, Vec::new()),
            (-errno::MALFORMED.number(), 7, Vec::new()),
            (0, 8, b"target".to_vec()),
        ];
        let mut buffer = [0; 10_000];
        for reply in expected {
            let len = kernel.recv(&mut buffer).unwrap();
            assert_eq!(parts(&buffer[..len]), reply);
        }
        end.shutdown(Shutdown::Both).unwrap();
        thread.join().unwrap().unwrap();
        let places = toy.places.lock();
        assert!(places[0] == places[1] && places[0].is_multiple_of(4096), "{places:?}");
    }
}
