//! A cache that services on several hosts share, over TCP or RDMA.
//!
//! One host has the memory and runs a *memory node*; the services open `tcp://HOST:PORT`. The node executes batches of
//! reads and writes and does not look at keys. A lookup is one round trip, a change two.
//!
//! On the host that has the memory:
//!
//! ```text
//! guira token ~/guira.token                                                  # a secret; copy it to the other hosts
//! guira serve --listen 0.0.0.0:7711 --capacity 1M --token-file ~/guira.token
//! ```
//!
//! With network cards that have RDMA, add `--rdma DEVICE` and open `rdma://HOST:PORT`: the card of the memory node then
//! reads and writes by itself.
//!
//! In the service, with [`aio`](crate::aio) on any executor. All clients of a store share one connection, and what
//! tasks send at the same moment travels together, so one store serves thousands of tasks:
//!
//! ```
//! use guira::{Blame, CreateOptions, OpenOptions, ServeOptions, aio};
//!
//! /// The cached answer, or a new one. A cache that cannot be reached slows the service down and does not stop it.
//! async fn answer(cache: &aio::Pool, question: &str) -> String {
//!     let cached = async { cache.get().await?.get(question.as_bytes()).await };
//!     match cached.await {
//!         Ok(Some(found)) => return String::from_utf8_lossy(&found).into_owned(),
//!         Ok(None) => {}
//!         Err(error) => eprintln!("{error}"),
//!     }
//!     let computed = format!("{question}? It depends.");
//!     let stored = async { cache.get().await?.put(question.as_bytes(), computed.as_bytes()).await };
//!     match stored.await {
//!         Ok(_) => {}
//!         Err(error) if error.blame() == Blame::Full => {}
//!         Err(error) => eprintln!("{error}"),
//!     }
//!     computed
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let table = guira::Store::create_unnamed(&CreateOptions::new(1_000))?;
//! # let node = table.serve(&ServeOptions::new("127.0.0.1:0".parse()?))?;
//! # let url = format!("tcp://{}", node.local_addrs()[0]);
//! # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
//! # runtime.block_on(async {
//! // `url` is such as "tcp://mem1:7711"; a node with a token needs `.token_file("/etc/guira/token")` as well.
//! let options = OpenOptions::new().deadline(std::time::Duration::from_millis(500));
//! let store = aio::Store::open_with(url.as_str(), &options).await?;
//! let cache = store.pool(16);
//! let tasks: Vec<_> = (0..1_000)
//!     .map(|id| {
//!         let cache = cache.clone();
//!         tokio::spawn(async move { answer(&cache, &format!("question {}", id % 100)).await })
//!     })
//!     .collect();
//! for (id, task) in tasks.into_iter().enumerate() {
//!     assert_eq!(task.await.expect("the task does not panic"), format!("question {}? It depends.", id % 100));
//! }
//! # cache.close_idle().await
//! # })?;
//! # node.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Clients, readers and slots.** A client takes one of the table's client slots (1,024 by default, of all processes
//! together): share a few through [`Store::pool`](crate::aio::Store::pool). A client does one operation at a time, so
//! 16 clients have 16 changes under way; further tasks wait, up to [`Pool::timeout`] (30 s by default). A lookup needs
//! no client: `pool.store().reader()` costs no round trip, waits for no client, and may be made for each request.
//!
//! **Errors.** [`Blame`](crate::Blame) says which errors may go away when the operation is repeated. An HTTP service
//! answers 503 to `Busy`, and to `Fabric` and `Fenced` without effect; 507 to `Full`; and 504 if the effect is unknown.
//!
//! **Lost connections.** The next operation connects again ([`OpenOptions::reconnect_timeout`]). If a change was under
//! way, its error's [`effect`](crate::Error::effect) says whether it took effect, did not, or cannot be known. A node
//! whose table is gone (it was restarted without `--backing`) is an error, never a miss.
//!
//! **Security.** A node that listens to other hosts demands a token, or TLS with certificates on both sides (feature
//! `tls`), unless it is told `--insecure`. A token alone is sent in the clear: use it on a network you trust.
//!
//! **Local processes** can use the same table at the same time: serve it with `--backing shm://NAME`, and open
//! `shm://NAME` on that host.
//!
//! **A node in the same program**, for tests or a service that runs alone: [`Store::create_unnamed`] and
//! [`Store::serve`], which block for a moment and belong before the executor, or on a thread of their own.
//!
//! The example `web_service` of this crate is an HTTP service that does all of this.
//!
//! [`OpenOptions::reconnect_timeout`]: crate::OpenOptions::reconnect_timeout
//! [`Pool::timeout`]: crate::aio::Pool::timeout
//! [`Store::create_unnamed`]: crate::Store::create_unnamed
//! [`Store::serve`]: crate::Store::serve
