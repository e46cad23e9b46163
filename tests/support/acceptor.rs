use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A server on a port of 127.0.0.1, which ends when it is dropped.
pub struct Acceptor {
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl Acceptor {
    /// Serves each connection in a thread of its own.
    pub fn start(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Acceptor {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let acceptor = Acceptor {
            port: listener.local_addr().unwrap().port(),
            is_over: Arc::new(AtomicBool::new(false)),
        };
        let is_over = acceptor.is_over.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let serve = serve.clone();
                std::thread::spawn(move || serve(client));
            }
        });
        acceptor
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}
