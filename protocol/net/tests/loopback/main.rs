//! Clients, servers and pools over real sockets of this machine, with peers that misbehave.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muster_core::channel::certificate::Credentials;
use muster_core::channel::handshake::{Answerer, Dialler, FIRST_BYTES, SECOND_BYTES, THIRD_BYTES};
use muster_core::channel::{FULL, Suite};
use muster_core::codec::decode;
use muster_core::ids::{Digest, MemberId, RunId};
use muster_core::limits;
use muster_core::messages::wire::Response;
use muster_core::sign::Identity;
use muster_net::client::Client;
use muster_net::clock::now;
use muster_net::connection::Connection;
use muster_net::endpoint::{Endpoint, Timeouts};
use muster_net::error::{Cause, NetError};
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Handler, Unanswered, serve};
use muster_net::shares::Role;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(150);
const PATIENT: Timeouts = Timeouts { handshake: LONG, idle: LONG, message: LONG };

fn endpoint_of(run: u8, name: u8) -> Endpoint {
    let identity = Arc::new(Identity::from_secret(&[name; 32]));
    Endpoint::new(RunId(Digest([run; 32])), identity).with_timeouts(PATIENT)
}

fn endpoint(name: u8) -> Endpoint {
    endpoint_of(1, name)
}

struct Server {
    address: String,
    id: MemberId,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start<H: Handler>(handler: H) -> Self {
        Self::start_as("127.0.0.1:0", endpoint(2), ConnectionLimit::default(), handler).await
    }

    async fn start_as<H: Handler>(
        address: &str,
        endpoint: Endpoint,
        admission: ConnectionLimit,
        handler: H,
    ) -> Self {
        let listener = Listener::bind(address, admission).await.unwrap();
        let (address, id) = (listener.local_addr().to_string(), endpoint.id());
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve(listener, endpoint, Arc::new(handler), shutdown));
        Self { address, id, stop, task }
    }

    async fn client(&self, name: u8) -> Client {
        Client::dial(&self.address, &endpoint(name), Some(self.id)).await.unwrap()
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

async fn echo(_: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
    Ok(request)
}

fn cause<T>(result: Result<T, NetError>) -> Cause {
    result.err().expect("a failure").cause
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_all_sizes_are_answered_in_order() {
    let server = Server::start(echo).await;
    let mut client = server.client(1).await;
    assert_eq!(client.peer(), server.id);
    // CHAN-9, CHAN-7: one Response for each Request, in order, with texts of one full piece, of one byte more, and at the
    // limit.
    for length in [0, 1, 65_515, 65_516, 1 << 20, limits::MESSAGE_BYTES, 5] {
        let request = vec![length as u8; length];
        assert_eq!(client.call(&request, LONG).await.unwrap(), request);
    }
    server.stop().await;
}

#[tokio::test]
async fn chan_9_a_series_is_answered_in_order_and_asked_ahead() {
    let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |_, request: Vec<u8>| {
        let heard = heard.clone();
        async move {
            heard.send(request[0]).unwrap();
            Ok(request)
        }
    })
    .await;
    let mut client = server.client(1).await;
    let requests = || (0..6).map(|number| [number; 9]);
    let mut answers = Vec::new();
    let mut take = |answer: Vec<u8>| {
        answers.push(answer[0]);
        answer[0] < 4
    };
    client.call_each(requests(), LONG, &mut take).await.unwrap();
    assert_eq!(answers, [0, 1, 2, 3, 4]);
    for number in 0..6 {
        assert_eq!(hears.recv().await, Some(number), "the one after the last that was taken had been sent");
    }
    // Its answer is read by nobody: the channel is of no further use.
    assert!(matches!(cause(client.call(b"next", LONG).await), Cause::Closed));
    let mut client = server.client(2).await;
    client.call_each(requests().take(5), LONG, |answer| answer[0] < 4).await.unwrap();
    assert_eq!(client.call(b"next", LONG).await.unwrap(), b"next", "nothing was left unread");
    server.stop().await;
}

#[tokio::test]
async fn the_handler_knows_who_asks() {
    let server = Server::start(|peer: MemberId, _| async move { Ok(peer.0.to_vec()) }).await;
    // CHAN-9: the handshake tells who asks. CHAN-10: nobody need be a member to open a channel.
    for name in [1, 7] {
        assert_eq!(server.client(name).await.call(b"", LONG).await.unwrap(), endpoint(name).id().0);
    }
    server.stop().await;
}

/// Counts the connections that it is told of.
#[derive(Default)]
struct Presences {
    here: AtomicUsize,
    ended: Arc<Notify>,
}

impl Handler for Presences {
    fn role(&self, _: &MemberId) -> Role {
        Role::Stranger
    }

    async fn handle(&self, _: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        assert_ne!(request, b"bug");
        Ok(vec![self.here.load(Ordering::SeqCst) as u8])
    }

    fn connected(&self, _: MemberId) {
        self.here.fetch_add(1, Ordering::SeqCst);
    }

    fn disconnected(&self, _: MemberId) {
        self.here.fetch_sub(1, Ordering::SeqCst);
        self.ended.notify_one();
    }
}

#[tokio::test]
async fn the_handler_knows_who_is_there() {
    let presences = Presences::default();
    let ended = presences.ended.clone();
    let server = Server::start(presences).await;
    let mut stays = server.client(1).await;
    assert_eq!(stays.call(b"", LONG).await.unwrap(), [1]);
    for last_words in [&b"bye"[..], b"bug"] {
        let mut leaves = server.client(3).await;
        let _ = leaves.call(last_words, LONG).await;
        drop(leaves);
        ended.notified().await;
        assert_eq!(stays.call(b"", LONG).await.unwrap(), [1]);
    }
    let mut another = server.client(3).await;
    assert_eq!(another.call(b"", LONG).await.unwrap(), [2]);
    server.stop().await;
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_one_after_the_other() {
    let active = Arc::new(AtomicUsize::new(0));
    let server = Server::start(move |_, request: Vec<u8>| {
        let active = active.clone();
        async move {
            assert_eq!(active.fetch_add(1, Ordering::SeqCst), 0, "two requests of one connection at once");
            tokio::task::yield_now().await;
            active.fetch_sub(1, Ordering::SeqCst);
            Ok(request)
        }
    })
    .await;
    let mut connection = Connection::dial(&server.address, &endpoint(1), Some(server.id)).await.unwrap();
    for number in 0..20 {
        connection.send(&[number]).await.unwrap();
    }
    // CHAN-9: the answers come in the order of the requests, though nobody waited for one before asking again.
    for number in 0..20 {
        assert_eq!(connection.receive().await.unwrap(), [number]);
    }
    server.stop().await;
}

#[tokio::test]
async fn refusals_and_long_answers_keep_the_client() {
    let server = Server::start(|_, request: Vec<u8>| async move {
        match request.as_slice() {
            b"long" => Ok(vec![0; limits::MESSAGE_BYTES + 1]),
            b"stop" => Err(Unanswered::Stopping),
            b"wordy" => Err(Unanswered::Refused("é\n".repeat(1000))),
            _ => Err(Unanswered::Refused("not yet".into())),
        }
    })
    .await;
    let mut client = server.client(1).await;
    let mut declined = async |request: &[u8]| match decode(&client.call(request, LONG).await.unwrap()) {
        Ok(Response::Refused(reason)) => reason.to_string(),
        other => panic!("{other:?}"),
    };
    // CHAN-9: Refused says why, and the channel goes on.
    assert_eq!(declined(b"please").await, "not yet");
    assert_eq!(declined(b"long").await, "the answer is too long");
    let reason = declined(b"wordy").await;
    assert!(reason.len() <= limits::TEXT_BYTES && reason.starts_with("é é "), "{reason}");
    assert!(client.is_usable());
    // LIMIT-2: a writer sends no more than MESSAGE_BYTES.
    assert!(matches!(cause(client.call(&vec![0; limits::MESSAGE_BYTES + 1], LONG).await), Cause::Own(_)));
    // CHAN-9: a stopping answerer closes without a Refused, which would be final: the dialler asks again later.
    assert!(matches!(cause(server.client(1).await.call(b"stop", LONG).await), Cause::Closed));
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_comes_too_late_meets_no_other_request() {
    let release = Arc::new(Notify::new());
    let held = release.clone();
    let server = Server::start(move |_, request: Vec<u8>| {
        let held = held.clone();
        async move {
            if request == b"slow" {
                held.notified().await;
            }
            Ok(request)
        }
    })
    .await;
    let mut client = server.client(1).await;
    assert!(matches!(cause(client.call(b"slow", SHORT).await), Cause::Timeout(_)));
    release.notify_one();
    assert!(!client.is_usable());
    assert!(matches!(cause(client.call(b"next", LONG).await), Cause::Closed));
    let mut client = server.client(1).await;
    {
        let abandoned = client.call(b"slow", LONG);
        assert!(tokio::time::timeout(SHORT, abandoned).await.is_err());
    }
    assert!(matches!(cause(client.call(b"next", LONG).await), Cause::Closed));
    server.stop().await;
}

#[tokio::test]
async fn the_idle_timeout_counts_only_between_requests() {
    let hasty = endpoint(2).with_timeouts(Timeouts { idle: SHORT, ..PATIENT });
    let poll = |_, request: Vec<u8>| async move {
        tokio::time::sleep(2 * SHORT).await;
        Ok(request)
    };
    let server = Server::start_as("127.0.0.1:0", hasty, ConnectionLimit::default(), poll).await;
    let mut connection = Connection::dial(&server.address, &endpoint(1), None).await.unwrap();
    connection.send(b"poll").await.unwrap();
    assert_eq!(connection.receive().await.unwrap(), b"poll");
    assert!(matches!(cause(connection.receive().await), Cause::Closed));
    server.stop().await;
}

#[tokio::test]
async fn another_run_or_another_member_is_refused() {
    let server = Server::start(echo).await;
    // CHAN-2: the run is in the prologue, so that the handshake with another run fails.
    let elsewhere = Client::dial(&server.address, &endpoint_of(9, 1), None).await;
    assert!(matches!(cause(elsewhere), Cause::Handshake(_)));
    // CHAN-4: the dialler ends the handshake when another member answers than it expected.
    let error = Client::dial(&server.address, &endpoint(1), Some(endpoint(3).id())).await.err().unwrap();
    assert!(matches!(error.cause, Cause::Handshake(_)));
    assert!(error.to_string().starts_with(&server.address), "{error}");
    let anyone = Client::dial(&server.address, &endpoint(1), None).await.unwrap();
    assert_eq!(anyone.peer(), server.id);
    server.stop().await;
}

/// Answers handshakes as a member whose clock says something else; counts connections, and those who showed it their certificate.
async fn answers_at(date: u64) -> (String, Arc<[AtomicUsize; 2]>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let [dialled, shown] = [0, 1].map(|index| {
        let counts = counts.clone();
        move || counts[index].fetch_add(1, Ordering::SeqCst)
    });
    tokio::spawn(async move {
        let identity = Identity::from_secret(&[2; 32]);
        let run = RunId(Digest([1; 32]));
        loop {
            let (mut stream, _) = socket.accept().await.unwrap();
            dialled();
            let credentials = Credentials::new(run, &identity, Zeroizing::new([3; 32]), date + 86_400);
            let mut first = [0; FIRST_BYTES];
            stream.read_exact(&mut first).await.unwrap();
            let (answerer, second) = Answerer::start(&credentials, &first, Zeroizing::new([6; 32])).unwrap();
            stream.write_all(&second).await.unwrap();
            let mut third = [0; THIRD_BYTES];
            if stream.read_exact(&mut third).await.is_ok() {
                shown();
                assert!(answerer.receive(&third, date).is_ok());
            }
        }
    });
    (address, counts)
}

/// Two clocks that are more than a day apart are named, on either side, before this side shows who it is. Nobody learns it who
/// is not the member expected, and nobody is called a second time to find out.
#[tokio::test]
async fn chan_3_a_clock_that_is_wrong_by_days_is_named() {
    let (me, other) = (endpoint(1), endpoint(2).id());
    for date in [now() - 30 * 86_400, now() + 400 * 86_400] {
        let (address, counts) = answers_at(date).await;
        let Err(error) = Connection::dial(&address, &me, Some(other)).await else { panic!("{date}") };
        let Cause::Clock(skew) = error.cause else { panic!("{error}") };
        assert!(skew.there.abs_diff(date) < 600 && skew.here.abs_diff(now()) < 600, "{skew:?}");
        let stranger = Connection::dial(&address, &me, Some(endpoint(3).id())).await;
        assert!(matches!(stranger.map(|_| ()).unwrap_err().cause, Cause::Handshake(_)));
        let [dialled, shown] = [0, 1].map(|index| counts[index].load(Ordering::SeqCst));
        assert_eq!((dialled, shown), (2, 0));
    }
    // Less than a day is no matter.
    for date in [now() - 80_000, now() + 80_000] {
        let (address, _) = answers_at(date).await;
        assert!(Connection::dial(&address, &me, Some(other)).await.is_ok());
    }
}

/// Everything that the other end sends until it closes; a reset is an end, too.
async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let (mut said, mut piece) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        said.extend_from_slice(&piece[..count]);
    }
    said
}

/// Shakes hands with a server by hand, sends a request behind message 3, and gives what comes back. `spoil` changes message
/// 3 on its way; the certificate expires at `expiry`.
async fn asked_by_hand(server: &Server, suite: Suite, expiry: u64, spoil: fn(&mut [u8])) -> Vec<u8> {
    let mut stream = TcpStream::connect(&server.address).await.unwrap();
    let (run, identity) = (RunId(Digest([1; 32])), Identity::from_secret(&[1; 32]));
    let credentials = Credentials::new(run, &identity, Zeroizing::new([3; 32]), expiry);
    let (dialler, first) = Dialler::start(&credentials, suite, Some(server.id), Zeroizing::new([5; 32]));
    stream.write_all(&first).await.unwrap();
    let mut second = [0; SECOND_BYTES];
    stream.read_exact(&mut second).await.unwrap();
    let (mut channel, mut third) = dialler.receive(&second, 0).unwrap();
    spoil(&mut third);
    let mut request = Vec::new();
    assert!(channel.sealer.seal(b"act").unwrap().next_piece(&mut request));
    stream.write_all(&[&third[..], &request].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    until_closed(&mut stream).await
}

/// CHAN-4, CHAN-6: message 2 is all that an answerer says to a dialler without a valid certificate. It acts on nothing, and
/// closes without saying why.
#[tokio::test]
async fn chan_6_a_failed_handshake_is_closed_without_a_word() {
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let server = Server::start(move |_, request: Vec<u8>| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok(request) }
    })
    .await;
    // CHAN-1: any other preamble fails, whatever follows.
    for preamble in [*b"muster\x01\x03", *b"muster\x02\x01", *b"nobody\x01\x01"] {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        stream.write_all(&[&preamble[..], &[7; FIRST_BYTES - 8]].concat()).await.unwrap();
        assert!(until_closed(&mut stream).await.is_empty());
    }
    for (number, suite) in (1..).zip(Suite::ALL) {
        // CHAN-1: the answerer takes either suite.
        assert!(!asked_by_hand(&server, suite, u64::MAX, |_| ()).await.is_empty());
        assert_eq!(handled.load(Ordering::SeqCst), number);
        let damaged = asked_by_hand(&server, suite, u64::MAX, |third| third[THIRD_BYTES - 1] ^= 1).await;
        // CHAN-3: a certificate must not have expired.
        let expired = asked_by_hand(&server, suite, 1, |_| ()).await;
        assert!(damaged.is_empty() && expired.is_empty());
        assert_eq!(handled.load(Ordering::SeqCst), number, "nothing was acted on");
    }
    server.stop().await;
}

#[tokio::test]
async fn nobody_there_and_nobody_answering_are_told_apart() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let hasty = endpoint(1).with_timeouts(Timeouts { handshake: SHORT, ..PATIENT });
    assert!(matches!(cause(Client::dial(&address, &hasty, None).await), Cause::Timeout("connecting")));
    drop(socket);
    assert!(matches!(cause(Client::dial(&address, &hasty, None).await), Cause::Refused));
    assert!(matches!(cause(Client::dial("no port", &hasty, None).await), Cause::System(_)));
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let busy = Listener::bind(&taken.local_addr().unwrap().to_string(), ConnectionLimit::default()).await;
    assert!(matches!(cause(busy), Cause::System(_)));
}

#[tokio::test]
async fn garbage_on_the_port_harms_nobody() {
    let server = Server::start(echo).await;
    let mut client = server.client(1).await;
    for garbage in
        [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 39], b"muster\x01\x01", b"muster\x02\x01", &[255; 70_000]]
    {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    assert_eq!(client.call(b"still there", LONG).await.unwrap(), b"still there");
    assert_eq!(server.client(3).await.call(b"for all", LONG).await.unwrap(), b"for all");
    server.stop().await;
}

#[tokio::test]
async fn a_panic_in_a_handler_costs_one_connection() {
    let server = Server::start(|_, request: Vec<u8>| async move {
        assert_ne!(request, b"bug");
        Ok(request)
    })
    .await;
    let mut client = server.client(1).await;
    assert!(matches!(cause(client.call(b"bug", LONG).await), Cause::Closed));
    assert_eq!(server.client(1).await.call(b"fine", LONG).await.unwrap(), b"fine");
    server.stop().await;
}

#[tokio::test]
async fn a_flood_of_connections_takes_only_its_seats() {
    let admission = ConnectionLimit { total: 64, per_source: 3 };
    let server = Server::start_as("127.0.0.1:0", endpoint(2), admission, echo).await;
    let mut client = server.client(1).await;
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut silent = TcpStream::connect(&server.address).await.unwrap();
        flood.spawn(async move { until_closed(&mut silent).await });
    }
    // CHAN-12: whoever finds no seat is told why.
    while flood.join_next().await.unwrap().unwrap() != FULL {}
    assert_eq!(client.call(b"seated", LONG).await.unwrap(), b"seated");
    // CHAN-14: a silent connection gives way after a second, and so a member behind the same address gets in.
    let mut another = loop {
        match Client::dial(&server.address, &endpoint(3), None).await {
            Ok(client) => break client,
            Err(error) => assert!(matches!(error.cause, Cause::Full | Cause::Closed), "{error}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(another.call(b"next", LONG).await.unwrap(), b"next");
    server.stop().await;
}

#[tokio::test]
async fn whoever_connects_and_says_nothing_loses_the_seat() {
    let hasty = endpoint(2).with_timeouts(Timeouts { handshake: 10 * SHORT, ..PATIENT });
    let admission = ConnectionLimit { total: 1, per_source: 1 };
    let server = Server::start_as("127.0.0.1:0", hasty, admission, echo).await;
    let mut silent = TcpStream::connect(&server.address).await.unwrap();
    silent.write_all(b"muster\x01").await.unwrap();
    assert!(matches!(silent.read(&mut [0]).await, Ok(0) | Err(_)));
    assert_eq!(server.client(1).await.call(b"free", LONG).await.unwrap(), b"free");
    server.stop().await;
}

#[tokio::test]
async fn a_stop_lets_the_request_under_way_finish() {
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enter, held) = (entered.clone(), release.clone());
    let server = Server::start(move |_, request: Vec<u8>| {
        let (enter, held) = (enter.clone(), held.clone());
        async move {
            enter.notify_one();
            held.notified().await;
            Ok(request)
        }
    })
    .await;
    let mut client = server.client(1).await;
    let mut idle = server.client(3).await;
    let call = tokio::spawn(async move { client.call(b"last", LONG).await });
    entered.notified().await;
    let _ = server.stop.send(());
    assert!(matches!(cause(idle.call(b"late", LONG).await), Cause::Closed));
    release.notify_one();
    assert_eq!(call.await.unwrap().unwrap(), b"last");
    server.task.await.unwrap();
    assert!(matches!(cause(Client::dial(&server.address, &endpoint(1), None).await), Cause::Refused));
}

#[tokio::test]
async fn a_stop_ends_a_request_that_hangs() {
    let entered = Arc::new(Notify::new());
    let enter = entered.clone();
    let server = Server::start(move |_, _: Vec<u8>| {
        enter.notify_one();
        std::future::pending::<Result<Vec<u8>, Unanswered>>()
    })
    .await;
    let mut client = server.client(1).await;
    let call = tokio::spawn(async move { client.call(b"hang", LONG).await });
    entered.notified().await;
    server.stop().await;
    assert!(matches!(cause(call.await.unwrap()), Cause::Closed));
}
