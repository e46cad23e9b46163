//! Requests that arrive by the device: threads that read it, each by a descriptor and with a buffer of its own. Long ones go
//! on to other threads (`long_requests.rs`).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use super::long_requests::{LONG_BYTES, LongRequests, RequestBuffer};
use super::sender::{Route, ToDevice};
use super::service::Service;

/// The group of the ioctls of the device.
pub(super) const IOCTL_GROUP: u8 = 229;
/// FUSE_DEV_IOC_CLONE, which takes the number of a descriptor.
const CLONE: Opcode = opcode::read::<u32>(IOCTL_GROUP, 0);

/// The threads that answer the requests of a mount.
pub(in crate::fs) struct DeviceThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
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
    /// Starts as many threads. `ended` is called when the last one ends.
    pub fn start(
        device: &Arc<OwnedFd>,
        count: usize,
        service: &Arc<impl Service>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<DeviceThreads> {
        let mut descriptors = vec![device.clone()];
        for _ in 1..count {
            descriptors.push(Arc::new(cloned(device)?));
        }
        let long = LongRequests::new(service.clone());
        let answered = long.clone();
        let ended = move || {
            answered.end();
            ended();
        };
        let (running, ended) = (Arc::new(AtomicUsize::new(descriptors.len())), Arc::new(ended));
        let mut threads = Vec::new();
        for (place, descriptor) in descriptors.into_iter().enumerate() {
            let (service, long) = (service.clone(), long.clone());
            let running = Running { count: running.clone(), ended: ended.clone() };
            let thread = std::thread::Builder::new().name(format!("device-{place}"));
            threads.push(thread.spawn(move || {
                let _running = running;
                serve(&descriptor, &*service, &long)
            })?);
        }
        Ok(DeviceThreads { threads })
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

/// Answers requests until the mount ends.
fn serve<S: Service>(device: &Arc<OwnedFd>, service: &S, long: &Arc<LongRequests<S>>) -> io::Result<()> {
    let mut buffer = RequestBuffer::new();
    loop {
        let len = match rustix::io::read(device, buffer.room()) {
            Ok(0) | Err(Errno::NODEV) => return Ok(()),
            Ok(len) => len,
            // A signal, or a request whose program was killed meanwhile.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        let route = Route::Device(ToDevice::new(device.clone()));
        if len < LONG_BYTES {
            service.receive(buffer.first(len), route);
        } else {
            buffer = long.answer(buffer, len, route);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::{LongRequests, serve};
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
        let long = LongRequests::new(service.clone());
        let thread = std::thread::spawn(move || serve(&device, &*service, &long));
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
