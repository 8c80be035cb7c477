//! A channel: whole messages to and from one known member.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_core::channel::FULL;
use muster_core::channel::frames::{HEADER_BYTES, Opener, PIECE_BYTES, Sealer};
use muster_core::channel::handshake::{
    Answerer, Dialler, Established, FIRST_BYTES, SECOND_BYTES, THIRD_BYTES,
};
use muster_core::ids::{EndpointKey, MemberId};
use muster_core::limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time;

use crate::bypass::Bypassed;
use crate::clock::{Skew, now};
use crate::endpoint::{Endpoint, Timeouts, Traffic, fastest_suite, random};
use crate::error::{Cause, NetError};
use crate::frame_reader::{FrameReader, SMALL_BYTES};
use crate::punch;
use crate::rate::Valve;
use crate::shares::{Allowance, Held, Place, Role};
use crate::wire::{Reading, Wire, Writing};

/// Capacity that an idle connection keeps for sealing.
const KEPT_BYTES: usize = 2 * limits::FRAME_BYTES;
/// How long one that is full is dialled, and how long after it said so.
const FULL_FOR: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(250);
/// How long the handshake may take over relays of members, before it is begun anew over the steward's.
const BYPASSED: Duration = Duration::from_secs(3);
/// How long a stranger may take over one request, once it has begun.
const STRANGERS_REQUEST: Duration = Duration::from_secs(20);
/// How long a stranger may take to read any answer, and how many bytes a second it reads beside that.
const STRANGERS_ANSWER: Duration = Duration::from_secs(10);
const SLOWEST_READER: usize = 64 << 10;

/// A channel to a known member. After an error it is of no further use: drop it.
pub struct Connection {
    peer: MemberId,
    // Dropped first: the place is free before the peer sees the end.
    receiver: ReceiveHalf,
    sender: SendHalf,
    /// Where it was dialled over relays of members.
    bypassed: Option<Bypassed>,
}

impl Connection {
    /// Connects to `host:port`, or through routers to `iroh:KEY` ([`crate::punch`]), and shakes hands, with `expected` or with
    /// whoever answers. One that is full is dialled again for a while.
    ///
    /// # Errors
    /// [`Cause::Refused`], [`Cause::Full`], [`Cause::Timeout`], [`Cause::Handshake`], [`Cause::Closed`],
    /// [`Cause::System`].
    pub async fn dial(
        address: &str,
        endpoint: &Endpoint,
        expected: Option<MemberId>,
    ) -> Result<Self, NetError> {
        let deadline = time::Instant::now() + FULL_FOR.min(endpoint.timeouts.handshake);
        loop {
            match Self::dial_once(address, endpoint, expected).await {
                // CHAN-14: where others only hold their seats, one of them is free within a second.
                Err(error) if matches!(error.cause, Cause::Full) && time::Instant::now() < deadline => {
                    time::sleep(AGAIN).await;
                }
                dialled => return dialled,
            }
        }
    }

    async fn dial_once(
        address: &str,
        endpoint: &Endpoint,
        expected: Option<MemberId>,
    ) -> Result<Self, NetError> {
        let established = async {
            if let Some(key) = punch::key(address) {
                return dial_through(key, endpoint, expected).await;
            }
            let mut wire = Wire::of_tcp(TcpStream::connect(address).await?)?;
            let channel = dial_handshake(&mut wire, endpoint, expected).await?;
            Ok((wire, channel, None))
        };
        let (wire, channel, bypassed) = within(endpoint.timeouts.handshake, "connecting", established)
            .await
            .map_err(|cause| NetError::new(address, cause))?;
        // Whoever was not expected may be a stranger with a key for each channel: no entry of theirs is kept.
        if let (Some(member), Some(own), Some(there)) = (expected, wire.local_addr(), wire.peer_addr()) {
            endpoint.reached(member, own.ip(), there);
        }
        Ok(Self { bypassed, ..Self::new(wire, channel, address, endpoint, None) })
    }

    /// Shakes hands with whoever dialled.
    pub(crate) async fn answer(
        wire: impl Future<Output = Result<Wire, Cause>>,
        endpoint: &Endpoint,
        address: &str,
        place: Place,
    ) -> Result<Self, NetError> {
        let established = async {
            let mut wire = wire.await?;
            let channel = answer_handshake(&mut wire, endpoint).await?;
            Ok((wire, channel))
        };
        let (wire, channel) = within(endpoint.timeouts.handshake, "the handshake", established)
            .await
            .map_err(|cause| NetError::new(address, cause))?;
        Ok(Self::new(wire, channel, address, endpoint, Some(place)))
    }

    fn new(
        wire: Wire,
        channel: Established,
        address: &str,
        endpoint: &Endpoint,
        place: Option<Place>,
    ) -> Self {
        let timeouts = endpoint.timeouts;
        let address = address.to_owned();
        Self {
            peer: channel.peer,
            bypassed: None,
            sender: SendHalf {
                stream: wire.writing,
                sealer: channel.sealer,
                piece: Vec::new(),
                kept: KEPT_BYTES,
                address: address.clone(),
                timeouts,
                traffic: endpoint.traffic.clone(),
                valve: endpoint.valves.up.clone(),
            },
            receiver: ReceiveHalf {
                frames: FrameReader::new(wire.reading, endpoint.valves.down.clone()),
                opener: channel.opener,
                address,
                timeouts,
                traffic: endpoint.traffic.clone(),
                _place: place,
            },
        }
    }

    /// The member at the other end.
    pub fn peer(&self) -> MemberId {
        self.peer
    }

    /// Where it was dialled over relays of members: what blames them.
    pub(crate) fn bypassed(&self) -> Option<&Bypassed> {
        self.bypassed.as_ref()
    }

    /// See [`SendHalf::send`].
    ///
    /// # Errors
    /// The same.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), NetError> {
        self.sender.send(message).await
    }

    /// See [`ReceiveHalf::receive`].
    ///
    /// # Errors
    /// The same.
    pub async fn receive(&mut self) -> Result<Vec<u8>, NetError> {
        self.receiver.receive().await
    }

    /// Receives a message that may take `patience` to begin.
    pub(crate) async fn receive_within(&mut self, patience: Duration) -> Result<Vec<u8>, NetError> {
        self.receiver.receive_within(patience).await
    }

    /// Keeps less memory between messages for a stranger than for a member.
    pub(crate) fn suit(&mut self, role: Role) {
        self.receiver.frames.shrink(role == Role::Stranger);
        self.sender.kept = if role == Role::Stranger { 0 } else { KEPT_BYTES };
    }

    /// Waits until the peer begins a message; as [`ReceiveHalf::receive`] for whoever goes on with [`Self::take`].
    pub(crate) async fn begins(&mut self) -> Result<(), NetError> {
        let begins = self.receiver.begins(self.receiver.timeouts.idle).await;
        begins.map_err(|cause| NetError::new(&self.receiver.address, cause))
    }

    /// Takes the message that has begun, as far as the peer's share allows, which holds its bytes.
    pub(crate) async fn take(&mut self, allowance: &Allowance) -> Result<(Vec<u8>, Held), NetError> {
        let patience = match allowance.role {
            Role::Member => self.receiver.timeouts.message,
            Role::Stranger => STRANGERS_REQUEST.min(self.receiver.timeouts.message),
        };
        let taken = within(patience, "receiving a message", self.receiver.message_within(allowance)).await;
        taken.map_err(|cause| NetError::new(&self.receiver.address, cause))
    }

    /// Sends an answer, for which a stranger has less time than a member. `read` is told whenever a stranger has read a
    /// little of it.
    pub(crate) async fn answer_with(
        &mut self,
        message: &[u8],
        role: Role,
        read: impl Fn(),
    ) -> Result<(), NetError> {
        let patience = self.sender.timeouts.message;
        match role {
            Role::Member => self.sender.send_within(message, patience, usize::MAX, read).await,
            Role::Stranger => {
                let reading = Duration::from_secs((message.len() / SLOWEST_READER) as u64);
                let patience = (STRANGERS_ANSWER + reading).min(patience);
                self.sender.send_within(message, patience, SLOWEST_READER, read).await
            }
        }
    }

    /// The halves, to send and receive at the same time. The place at the listener is free once the receiving half is dropped.
    pub fn split(self) -> (SendHalf, ReceiveHalf) {
        (self.sender, self.receiver)
    }
}

/// The half of a connection that sends.
pub struct SendHalf {
    stream: Writing,
    sealer: Sealer,
    piece: Vec<u8>,
    /// Capacity that stays with `piece`.
    kept: usize,
    address: String,
    timeouts: Timeouts,
    traffic: Arc<Traffic>,
    valve: Valve,
}

impl SendHalf {
    /// Sends one message of at most [`limits::MESSAGE_BYTES`]. A call that is cancelled ends the channel.
    ///
    /// # Errors
    /// [`Cause::Own`] when it is longer, [`Cause::Timeout`] when the peer does not take it, [`Cause::Closed`] also when
    /// the channel has carried all it may, or an earlier message was cut short.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), NetError> {
        self.send_within(message, self.timeouts.message, usize::MAX, || ()).await
    }

    /// Sends so many bytes at a time; `sent` is told of each time.
    async fn send_within(
        &mut self,
        message: &[u8],
        patience: Duration,
        at_a_time: usize,
        sent: impl Fn(),
    ) -> Result<(), NetError> {
        let tried = self.try_send(message, patience, at_a_time, sent).await;
        tried.map_err(|cause| NetError::new(&self.address, cause))
    }

    async fn try_send(
        &mut self,
        message: &[u8],
        patience: Duration,
        at_a_time: usize,
        told: impl Fn(),
    ) -> Result<(), Cause> {
        // CHAN-8: keys are never renewed. A closed channel is what makes a caller dial a new one.
        if self.sealer.is_spent() {
            return Err(Cause::Closed);
        }
        let mut sealing = self.sealer.seal(message)?;
        let sent = async {
            while sealing.next_piece(&mut self.piece) {
                for some in self.piece.chunks(self.valve.at_a_time(at_a_time)) {
                    self.valve.pass(some.len()).await;
                    self.stream.write_all(some).await?;
                    told();
                }
                self.traffic.sent.fetch_add(self.piece.len() as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        // A peer that reads nothing would keep this task and its message for good.
        within(patience, "sending a message", sent).await?;
        // The pieces of a long message must not cost that much memory on each idle connection from then on.
        self.piece.clear();
        self.piece.shrink_to(self.kept);
        Ok(())
    }
}

/// Bytes of memory that an answer takes while it is sent: its own, and those of its sealed pieces.
pub(crate) fn sending_bytes(answer: usize) -> usize {
    answer + answer.min(PIECE_BYTES)
}

/// The half of a connection that receives.
pub struct ReceiveHalf {
    // Kept for its drop, which frees the place at the listener.
    _place: Option<Place>,
    frames: FrameReader<Reading>,
    opener: Opener,
    address: String,
    timeouts: Timeouts,
    traffic: Arc<Traffic>,
}

impl ReceiveHalf {
    /// Receives the next message. A call that is cancelled loses nothing: the next one goes on with the message.
    ///
    /// # Errors
    /// [`Cause::Timeout`] when the peer is silent or slow, [`Cause::Closed`], [`Cause::Peer`] when it breaks the rules.
    pub async fn receive(&mut self) -> Result<Vec<u8>, NetError> {
        self.receive_within(self.timeouts.idle).await
    }

    async fn receive_within(&mut self, patience: Duration) -> Result<Vec<u8>, NetError> {
        self.try_receive(patience).await.map_err(|cause| NetError::new(&self.address, cause))
    }

    async fn try_receive(&mut self, patience: Duration) -> Result<Vec<u8>, Cause> {
        // Between messages a peer may be silent for long. Once one has begun it may not: each dripped byte
        // would hold its buffer.
        self.begins(patience).await?;
        within(self.timeouts.message, "receiving a message", self.message()).await
    }

    async fn begins(&mut self, patience: Duration) -> Result<(), Cause> {
        within(patience, "waiting for a message", async { Ok(self.frames.header().await?) }).await?;
        Ok(())
    }

    async fn message(&mut self) -> Result<Vec<u8>, Cause> {
        loop {
            if let Some(message) = self.frame(limits::MESSAGE_BYTES).await? {
                return Ok(message);
            }
        }
    }

    /// CHAN-16: bytes are taken from the share before there is memory for them.
    async fn message_within(&mut self, allowance: &Allowance) -> Result<(Vec<u8>, Held), Cause> {
        let mut held = Held::default();
        let frame = self.frames.header().await?;
        // What fits into what each connection has anyway needs no leave.
        if HEADER_BYTES + frame > SMALL_BYTES {
            held.add(allowance.incoming.take(frame).await);
        }
        let mut announced = false;
        loop {
            if let Some(message) = self.frame(allowance.longest()).await? {
                return Ok((message, held));
            }
            if !announced {
                held.add(allowance.incoming.take(self.opener.announced()).await);
            }
            announced = true;
        }
    }

    /// Takes a frame; the message that it completes.
    async fn frame(&mut self, limit: usize) -> Result<Option<Vec<u8>>, Cause> {
        // A u16 bounds what the peer can ask for: 65,535 bytes before anything is verified.
        let frame = self.frames.frame().await?;
        self.traffic.received.fetch_add((HEADER_BYTES + frame.len()) as u64, Ordering::Relaxed);
        match self.opener.open_within(frame, limit)? {
            Some(message) => {
                self.frames.settle();
                Ok(Some(message))
            }
            None => {
                self.frames.widen();
                Ok(None)
            }
        }
    }
}

/// Shakes hands through routers, over relays of members where these may lead there, or over the steward's.
async fn dial_through(
    key: EndpointKey,
    endpoint: &Endpoint,
    expected: Option<MemberId>,
) -> Result<(Wire, Established, Option<Bypassed>), Cause> {
    let ways = endpoint.punching.ways().await?;
    let (mut wire, bypassed) = ways.dial(key).await?;
    if let Some(bypassed) = bypassed {
        match time::timeout(BYPASSED, dial_handshake(&mut wire, endpoint, expected)).await {
            Ok(Ok(channel)) => return Ok((wire, channel, Some(bypassed))),
            // Whoever has the key has said who it is, and would over any other relay.
            Ok(Err(error @ (Cause::Handshake(_) | Cause::Clock(_) | Cause::Full))) => return Err(error),
            Ok(Err(_)) | Err(_) => bypassed.failed(),
        }
        wire = ways.dial_straight(key).await?;
    }
    let channel = dial_handshake(&mut wire, endpoint, expected).await?;
    Ok((wire, channel, None))
}

async fn dial_handshake(
    wire: &mut Wire,
    endpoint: &Endpoint,
    expected: Option<MemberId>,
) -> Result<Established, Cause> {
    let (credentials, seed) = (endpoint.credentials()?, random()?);
    let start = |seed| Dialler::start(&credentials, fastest_suite(), expected, seed);
    let (dialler, first) = start(seed.clone());
    // A listener without a place closes at once, and so this may fail before its word is read.
    let written = wire.writing.write_all(&first).await;
    let mut second = [0; SECOND_BYTES];
    let (beginning, rest) = second.split_at_mut(FULL.len());
    wire.reading.read_exact(beginning).await?;
    // CHAN-12: one in 2⁶⁴ messages 2 begins like this.
    if *beginning == FULL {
        return Err(Cause::Full);
    }
    written?;
    wire.reading.read_exact(rest).await?;
    let (channel, third) = match dialler.receive(&second, now()) {
        Ok(received) => received,
        Err(error) => {
            // The handshake does not say why it failed (CHAN-6). Where the same one is good by a clock that stands at 0, the
            // member expected has shown a certificate that has expired here. Nothing is dialled or sent to find that out.
            let again = expected.and_then(|_| start(seed).0.receive(&second, 0).ok());
            let skew = again.and_then(|(channel, _)| Skew::behind(channel.expiry, now()));
            return Err(skew.map_or(error.into(), Cause::Clock));
        }
    };
    // Before this side shows a certificate that has expired there: a closed channel would not say why.
    if let Some(skew) = Skew::ahead(channel.expiry, now()) {
        return Err(Cause::Clock(skew));
    }
    wire.writing.write_all(&third).await?;
    Ok(channel)
}

async fn answer_handshake(wire: &mut Wire, endpoint: &Endpoint) -> Result<Established, Cause> {
    let mut first = [0; FIRST_BYTES];
    wire.reading.read_exact(&mut first).await?;
    let credentials = endpoint.credentials()?;
    let (answerer, second) = Answerer::start(&credentials, &first, random()?)?;
    wire.writing.write_all(&second).await?;
    let mut third = [0; THIRD_BYTES];
    wire.reading.read_exact(&mut third).await?;
    Ok(answerer.receive(&third, now())?)
}

async fn within<T>(
    limit: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, Cause>>,
) -> Result<T, Cause> {
    time::timeout(limit, work).await.unwrap_or(Err(Cause::Timeout(what)))
}

#[cfg(test)]
mod tests;
