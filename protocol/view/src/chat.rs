//! A page to talk to a model: a text, a line, and how the model goes on, as it is written.
//!
//! The text travels with each question and is kept nowhere. Whoever opens the page takes the questions one after the other and
//! answers them piece by piece. Only the page itself may ask: what other sites send is refused (`Origin`, `Sec-Fetch-Site`), and
//! where only this machine can dial it, so is every other name (DNS rebinding).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::{Extension, Router};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt, once};

use crate::serve::Pages;
use crate::serve::door::{Door, Guest, PLAIN, Place, Places, Policy, busy, guarded, is_meant, stranger};

/// Questions that wait or are answered, one of each source that is not this machine.
const QUESTIONS: usize = 4;
/// Characters of a line, and bytes of a question as it is sent.
const LINE: usize = 16 << 10;
const QUESTION_BYTES: usize = 1 << 20;
/// How long a question may take to come, and how long a connection lasts.
const COMING: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(3600);
/// Pieces of an answer that wait to be read: beyond, nobody reads.
const PIECES: usize = 4096;

/// A piece of an answer, or its end.
enum Said {
    Piece(String),
    /// Whether the text has ended.
    End(bool),
    Failed(String),
}

/// A text that somebody wants to go on.
pub struct Question {
    /// The text.
    pub prompt: String,
    said: mpsc::Sender<Said>,
}

impl Question {
    /// Whether somebody still waits for the answer.
    pub fn is_waited_for(&self) -> bool {
        !self.said.is_closed()
    }

    /// Adds a piece to the answer; whether somebody still reads. A reader that is too slow is as good as none, so that it keeps
    /// nobody else waiting.
    pub fn say(&self, piece: &str) -> bool {
        self.said.try_send(Said::Piece(piece.to_owned())).is_ok()
    }

    /// Ends the answer. `ended` says whether the text has, too: then the next line begins another one.
    pub fn end(self, ended: bool) {
        // Nobody may read any more.
        let _ = self.said.try_send(Said::End(ended));
    }

    /// Ends the answer with what went wrong.
    pub fn fail(self, why: String) {
        let _ = self.said.try_send(Said::Failed(why));
    }
}

struct Chat {
    name: String,
    /// What the text begins with.
    prompt: String,
    local: bool,
    questions: mpsc::Sender<Question>,
    places: Arc<Places>,
}

/// Opens the page at an address, as long as the result is kept, and gives what is asked there.
///
/// # Errors
/// In words: the address is no address of this machine, or is taken.
pub async fn open(
    address: &str,
    name: &str,
    prompt: &str,
) -> Result<(Pages, mpsc::Receiver<Question>), String> {
    let door = Door::open("--web", address).await?;
    let (questions, asked) = mpsc::channel(QUESTIONS);
    let chat = Chat {
        name: name.to_owned(),
        prompt: prompt.to_owned(),
        local: door.is_local(),
        questions,
        places: Arc::new(Places::new(QUESTIONS)),
    };
    let router = Router::new().fallback(answered).with_state(Arc::new(chat));
    Ok((door.serve(router, LONGEST), asked))
}

async fn answered(
    State(chat): State<Arc<Chat>>,
    Extension(guest): Extension<Guest>,
    request: Request,
) -> Response {
    if chat.local && !is_meant(request.headers()) {
        return stranger();
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match (&method, &*path) {
        (&Method::GET | &Method::HEAD, "/") => {
            html(Body::from(begin(&chat, &chat.prompt) + &end(&chat.prompt, "")))
        }
        (&Method::GET | &Method::HEAD, "/chat.js") => {
            file("text/javascript; charset=utf-8", include_str!("../assets/chat.js"))
        }
        (&Method::GET | &Method::HEAD, "/style.css") => {
            file("text/css; charset=utf-8", include_str!("../assets/style.css"))
        }
        (&Method::GET | &Method::HEAD, "/icon.svg") => {
            file("image/svg+xml", include_str!("../assets/icon.svg"))
        }
        (&Method::POST, "/" | "/answer") => match chat.ask(guest, request).await {
            Ok((text, said)) if path == "/" => html(Body::from_stream(page(&chat, text, said))),
            Ok((_, said)) => guarded(
                Policy::Asking,
                StatusCode::OK,
                "application/x-ndjson",
                Body::from_stream(lines(said)),
            ),
            Err(refused) => refused.response(),
        },
        _ => plain(StatusCode::NOT_FOUND, "There is nothing at this address.\n"),
    }
}

/// What is said in answer to a question, and the place that it takes.
struct Answer {
    said: mpsc::Receiver<Said>,
    place: Place,
}

/// Why a question is not taken in.
enum Refused {
    Foreign,
    Late,
    Long,
    Full,
}

impl Refused {
    fn response(self) -> Response {
        match self {
            Self::Foreign => plain(StatusCode::FORBIDDEN, "Only this page itself may ask.\n"),
            Self::Late => plain(StatusCode::REQUEST_TIMEOUT, "The question did not come in time.\n"),
            Self::Long => plain(StatusCode::PAYLOAD_TOO_LARGE, "This text is too long; begin another one.\n"),
            Self::Full => busy("The model answers others; try again in a minute.\n"),
        }
    }
}

impl Chat {
    /// Takes a question in; gives the text with its new line.
    async fn ask(&self, guest: Guest, request: Request) -> Result<(String, Answer), Refused> {
        if !is_own(request.headers()) {
            return Err(Refused::Foreign);
        }
        let body = timeout(COMING, to_bytes(request.into_body(), QUESTION_BYTES)).await;
        let body = body.map_err(|_| Refused::Late)?.map_err(|_| Refused::Long)?;
        let (text, line) = (field(&body, "text"), field(&body, "line"));
        if line.chars().count() > LINE {
            return Err(Refused::Long);
        }
        let prompt = if text.is_empty() || line.is_empty() { text + &line } else { text + "\n" + &line };
        let place = self.places.begin(guest).ok_or(Refused::Full)?;
        let (sender, said) = mpsc::channel(PIECES);
        let question = Question { prompt: prompt.clone(), said: sender };
        // Those whose askers have gone are still in it.
        self.questions.try_send(question).map_err(|_| Refused::Full)?;
        Ok((prompt, Answer { said, place }))
    }
}

/// Whether a question was asked by the page itself, or by no browser: a browser says where it comes from.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST.as_str()).unwrap_or_default();
    let own =
        |origin: &str| origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host));
    text("origin").is_none_or(own) && text("sec-fetch-site").is_none_or(|site| site == "same-origin")
}

/// A field of a form.
fn field(body: &Bytes, name: &str) -> String {
    let found = form_urlencoded::parse(body).find(|(key, _)| key == name);
    // Forms end lines as mail does.
    found.map(|(_, value)| value.replace("\r\n", "\n")).unwrap_or_default()
}

/// An answer as lines of JSON, for the script of the page.
fn lines(answer: Answer) -> impl Stream<Item = Result<String, Infallible>> {
    let Answer { said, place } = answer;
    ReceiverStream::new(said).map(move |said| {
        // Held as long as the stream.
        let _ = &place;
        let said = match said {
            Said::Piece(piece) => json!({ "piece": piece }),
            Said::End(ended) => json!({ "ended": ended }),
            Said::Failed(why) => json!({ "failed": why }),
        };
        Ok(format!("{said}\n"))
    })
}

/// An answer as a page of its own, which grows as it is written.
fn page(
    chat: &Chat,
    mut text: String,
    answer: Answer,
) -> impl Stream<Item = Result<String, Infallible>> + use<> {
    let Answer { said, place } = answer;
    let begun = once(begin(chat, &text));
    let rest = ReceiverStream::new(said).map(move |said| {
        let _ = &place;
        match said {
            Said::Piece(piece) => {
                text += &piece;
                made(&Escaped { text: &piece })
            }
            Said::End(true) => end("", "The text ends here; the next line begins another one."),
            Said::End(false) => end(&text, ""),
            Said::Failed(why) => end(&text, &why),
        }
    });
    begun.chain(rest).map(Ok)
}

#[derive(Template)]
#[template(path = "chat-begin.html")]
struct Begin<'a> {
    name: &'a str,
    text: &'a str,
}

#[derive(Template)]
#[template(path = "chat-end.html")]
struct End<'a> {
    text: &'a str,
    state: &'a str,
    most: usize,
}

#[derive(Template)]
#[template(source = "{{ text }}", ext = "html")]
struct Escaped<'a> {
    text: &'a str,
}

fn begin(chat: &Chat, text: &str) -> String {
    made(&Begin { name: &chat.name, text })
}

fn end(text: &str, state: &str) -> String {
    made(&End { text, state, most: LINE })
}

fn made(template: &impl Template) -> String {
    template.render().unwrap_or_default()
}

fn html(body: Body) -> Response {
    guarded(Policy::Asking, StatusCode::OK, "text/html; charset=utf-8", body)
}

fn file(kind: &'static str, text: &'static str) -> Response {
    guarded(Policy::Asking, StatusCode::OK, kind, text)
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    guarded(Policy::Asking, status, PLAIN, text)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_page_itself_may_ask() {
        let asked = |headers: &[(&'static str, &'static str)]| {
            let mut all = HeaderMap::new();
            all.insert("host", HeaderValue::from_static("127.0.0.1:8080"));
            all.extend(
                headers.iter().map(|(name, value)| (name.parse().ok(), HeaderValue::from_static(value))),
            );
            is_own(&all)
        };
        assert!(asked(&[]), "no browser");
        assert!(asked(&[("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "same-origin")]));
        for origin in
            ["http://127.0.0.1:8081", "http://example.org", "null", "http://127.0.0.1:8080.example.org", ""]
        {
            assert!(!asked(&[("origin", origin)]), "{origin}");
        }
        assert!(!asked(&[("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "cross-site")]));
        assert!(!asked(&[("sec-fetch-site", "same-site")]));
    }

    #[test]
    fn what_a_model_writes_is_text_and_no_page() {
        assert_eq!(made(&Escaped { text: "<script>&" }), "&#60;script&#62;&#38;");
        let page = end("\"><script>", "");
        assert!(!page.contains("<script>"), "{page}");
    }
}
