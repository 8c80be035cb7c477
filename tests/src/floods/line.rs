//! A channel as a stranger dials it: from any address, under a key that nobody knows. What comes on it is not opened.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use muster_core::channel::Suite;
use muster_core::channel::certificate::Credentials;
use muster_core::channel::frames::Sealer;
use muster_core::channel::handshake::{Dialler, FIRST_BYTES, SECOND_BYTES};
use muster_core::ids::RunId;
use muster_core::sign::Identity;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// How long a certificate is good for, in seconds.
const VALID: u64 = 3600;

/// Secrets that differ: nobody else has to be unable to guess them.
static SECRETS: AtomicU64 = AtomicU64::new(0);

/// Dials from an address that nobody else has: a port counts connections by source.
pub(super) async fn dial(to: SocketAddr, from: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

/// An open channel.
pub(super) struct Line {
    pub(super) stream: TcpStream,
    pub(super) sealer: Sealer,
}

impl Line {
    /// Dials and shakes hands, as a new stranger.
    pub(super) async fn dial(to: SocketAddr, from: Ipv4Addr, run: RunId) -> io::Result<Self> {
        let (dialler, first) = handshake(run);
        let mut stream = dial(to, from).await?;
        stream.write_all(&first).await?;
        let mut second = [0; SECOND_BYTES];
        stream.read_exact(&mut second).await?;
        let (channel, third) = dialler.receive(&second, now()).map_err(io::Error::other)?;
        stream.write_all(&third).await?;
        Ok(Self { stream, sealer: channel.sealer })
    }
}

/// The bytes of so many copies of a message on a channel.
pub(super) fn sealed(sealer: &mut Sealer, message: &[u8], copies: usize) -> io::Result<Vec<u8>> {
    let (mut sealed, mut piece) = (Vec::new(), Vec::new());
    for _ in 0..copies {
        let mut sealing = sealer.seal(message).map_err(|misuse| io::Error::other(misuse.0))?;
        while sealing.next_piece(&mut piece) {
            sealed.extend_from_slice(&piece);
        }
    }
    Ok(sealed)
}

/// The beginning of a handshake.
pub(super) fn handshake(run: RunId) -> (Dialler, [u8; FIRST_BYTES]) {
    let stranger = Identity::from_secret(&secret());
    let credentials = Credentials::new(run, &stranger, secret().into(), now() + VALID);
    Dialler::start(&credentials, Suite::AesGcm, None, secret().into())
}

/// 32 bytes, other ones each time.
pub(super) fn secret() -> [u8; 32] {
    let number = SECRETS.fetch_add(1, Ordering::Relaxed);
    let mut bytes = [0; 32];
    ChaCha8Rng::seed_from_u64(number | u64::from(std::process::id()) << 32).fill_bytes(&mut bytes);
    bytes
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
