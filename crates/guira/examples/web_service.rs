//! An HTTP service whose state is a table behind a memory node.
//!
//! ```text
//! cargo run --release -p guira --example web_service                                   # a table of its own
//! cargo run --release -p guira --example web_service -- 127.0.0.1:8080 tcp://mem1:7711
//! curl -X PUT -d "Guira guira" http://127.0.0.1:8080/cuckoo
//! curl http://127.0.0.1:8080/cuckoo
//! curl -X POST http://127.0.0.1:8080/visits/count                                      # adds 1; GET returns it
//! curl -X DELETE http://127.0.0.1:8080/cuckoo
//! ```
//!
//! Any number of such services share the table, and none of them has any state. Without a URL the service starts a
//! memory node in its own process, whose table is gone with it. For a node that wants a token, GUIRA_TOKEN_FILE names
//! the file with it. If the node restarts without its table, one request of each client fails with 503, and the service
//! goes on with the node's new table. Lookups use readers, which need no client slot; changes share a pool of clients. Errors of the
//! table become HTTP statuses. SIGTERM and Ctrl-C end the service. Everybody who reaches its address
//! may change the table.
#![forbid(unsafe_code)]

use std::error::Error as StdError;
use std::future::IntoFuture;
use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use guira::aio::{self, Pool};
use guira::{Blame, CreateOptions, Effect, Error, OpenOptions, OperationErrorKind, Put, Reopen, ServeOptions, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

type Failure = Box<dyn StdError>;

const USAGE: &str = "usage: web_service [ADDRESS:PORT] [URL]";
const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";
/// Clients that change the table, for all requests: each takes one of its client slots.
const CLIENTS: u16 = 16;
/// A request waits this long for other clients, and for a lost connection, before it fails with 503.
const DEADLINE: Duration = Duration::from_secs(5);
/// Requests that are under way when the service is told to end have this long to finish.
const GRACE: Duration = Duration::from_secs(5);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => serve_own_table(DEFAULT_ADDRESS),
        [address] => serve_own_table(address),
        [address, url] => serve(address, url),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = result {
        eprintln!("web_service: {error}");
        std::process::exit(1);
    }
}

/// Serves a table in the memory of this process, through a memory node on a free port of this host.
fn serve_own_table(address: &str) -> Result<(), Failure> {
    let table = Store::create_unnamed(&CreateOptions::new(100_000))?;
    let node = table.serve(&ServeOptions::new(SocketAddr::from(([127, 0, 0, 1], 0))))?;
    let url = node.local_addrs().first().map(|node| format!("tcp://{node}")).ok_or("the node has no address")?;
    let result = serve(address, &url);
    node.stop()?;
    result
}

fn serve(address: &str, url: &str) -> Result<(), Failure> {
    let address: SocketAddr = address.parse().map_err(|_| format!("{address:?} is not an IP:PORT; {USAGE}"))?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(answer_requests(address, url))
}

async fn answer_requests(address: SocketAddr, url: &str) -> Result<(), Failure> {
    let mut options = OpenOptions::new().deadline(DEADLINE).reconnect_timeout(DEADLINE).reopen(Reopen::AfterLoss);
    if let Some(file) = std::env::var_os("GUIRA_TOKEN_FILE") {
        options = options.token_file(file);
    }
    let pool = aio::Store::open_with(url, &options).await?.pool(CLIENTS).timeout(DEADLINE);
    let routes = Router::new()
        .route("/{key}", get(read).put(write).delete(remove))
        .route("/{key}/count", get(count).post(increment))
        .with_state(pool.clone());
    let (stopped, stopped_too) = (termination()?, termination()?);
    let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    writeln!(stdout(), "http://{} answers for {url}", listener.local_addr()?)?;
    let service = axum::serve(listener, routes).with_graceful_shutdown(stopped);
    tokio::select! {
        served = service.into_future() => served?,
        () = async { stopped_too.await; tokio::time::sleep(GRACE).await } => {}
    }
    Ok(pool.close_idle().await?)
}

/// Returns a future that is ready when this process is told to end, by SIGTERM or Ctrl-C.
fn termination() -> std::io::Result<impl Future<Output = ()> + Send> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
}

async fn read(State(pool): State<Pool>, Path(key): Path<String>) -> Result<Response, Refusal> {
    let found = pool.store().reader().get(key.as_bytes()).await?;
    Ok(found.map_or(StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response))
}

async fn write(State(pool): State<Pool>, Path(key): Path<String>, value: Bytes) -> Result<StatusCode, Refusal> {
    Ok(match pool.get().await?.put(key.as_bytes(), &value).await? {
        Put::Inserted => StatusCode::CREATED,
        Put::Replaced => StatusCode::NO_CONTENT,
    })
}

async fn remove(State(pool): State<Pool>, Path(key): Path<String>) -> Result<StatusCode, Refusal> {
    let was_there = pool.get().await?.remove(key.as_bytes()).await?;
    Ok(if was_there { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND })
}

/// Adds 1 to a counter, and returns the sum in digits.
async fn increment(State(pool): State<Pool>, Path(key): Path<String>) -> Result<String, Refusal> {
    Ok(format!("{}\n", pool.get().await?.increment(key.as_bytes(), 1).await?))
}

/// Returns a counter in digits. The table has it as 8 bytes.
async fn count(State(pool): State<Pool>, Path(key): Path<String>) -> Result<Response, Refusal> {
    let found = pool.store().reader().get(key.as_bytes()).await?;
    Ok(match found.map(|bytes| bytes.try_into().map(u64::from_le_bytes)) {
        Some(Ok(count)) => format!("{count}\n").into_response(),
        Some(Err(_)) => (StatusCode::CONFLICT, "the value is not a counter\n").into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// An error of the table, as an answer.
struct Refusal(Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(error) = self;
        let status = match (error.blame(), error.effect(), error.operation_kind()) {
            (_, _, Some(OperationErrorKind::KeyLength { .. })) => StatusCode::URI_TOO_LONG,
            (_, _, Some(OperationErrorKind::ValueLength { .. })) => StatusCode::PAYLOAD_TOO_LARGE,
            (_, _, Some(OperationErrorKind::NotANumber)) => StatusCode::CONFLICT,
            (Blame::Full, ..) => StatusCode::INSUFFICIENT_STORAGE,
            // Nothing was changed, and another attempt may succeed.
            (Blame::Busy | Blame::Fabric | Blame::Fenced, Effect::None, _) => StatusCode::SERVICE_UNAVAILABLE,
            // The connection to the node was lost, and the change may have been made.
            (Blame::Fabric | Blame::Fenced, ..) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{error}\n")).into_response()
    }
}
