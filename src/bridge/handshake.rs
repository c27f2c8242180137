//! Upgrade and hello: the daemon is the websocket client on a connection that the kernel opened.

use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::BridgeError;
use super::meter::Metered;
use crate::protocol::frames::{HostFrame, KernelFrame, KernelLimits, Probe};
use crate::protocol::ids::{CellNumber, SandboxId};
use crate::protocol::limits::{BRIDGE_VERSION, FRAME_BYTES, WRITE_BUFFER_BYTES};
use crate::security_controls;

/// What the kernel reports about itself.
#[derive(Clone, Debug)]
pub struct Hello {
    pub python: String,
    pub probe: Probe,
    pub running: Vec<CellNumber>,
    pub state_of: CellNumber,
    pub last_cell: CellNumber,
    pub resumes_after: u64,
}

/// Longest Python version that is accepted; the rest is cut.
const VERSION_CHARS: usize = 64;

fn settings() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(security_controls::setting("frame_size_limit", FRAME_BYTES))
        .max_frame_size(security_controls::setting("frame_size_limit", FRAME_BYTES))
        .max_write_buffer_size(WRITE_BUFFER_BYTES)
}

/// Upgrades the stream and exchanges hellos.
pub async fn connect(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    sandbox: &SandboxId,
    limits: KernelLimits,
    received: u64,
    limit: Duration,
) -> Result<(WebSocketStream<Metered>, Hello), BridgeError> {
    let protocol = |error: tokio_tungstenite::tungstenite::Error| BridgeError::Protocol(error.to_string());
    let exchange = async {
        let (mut socket, _) =
            client_async_with_config("ws://kernel/", Metered::new(stream), Some(settings()))
                .await
                .map_err(protocol)?;
        let hello =
            HostFrame::Hello { versions: vec![BRIDGE_VERSION], sandbox: sandbox.0.clone(), limits, received };
        let text = serde_json::to_string(&hello).map_err(|error| BridgeError::Protocol(error.to_string()))?;
        socket.send(Message::text(text)).await.map_err(protocol)?;
        loop {
            match socket.next().await {
                Some(Ok(Message::Text(text))) => return Ok((socket, parse_hello(&text)?)),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(why))) => {
                    let why = why.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    return Err(BridgeError::Protocol(format!("it hung up: {}", why.escape_default())));
                }
                Some(Ok(_)) => return Err(BridgeError::Protocol("something came before the hello".into())),
                Some(Err(error)) => return Err(protocol(error)),
                None => return Err(BridgeError::Protocol("it hung up before its hello".into())),
            }
        }
    };
    tokio::time::timeout(limit, exchange).await.map_err(|_| BridgeError::NoHello(limit))?
}

fn parse_hello(text: &str) -> Result<Hello, BridgeError> {
    match serde_json::from_str(text) {
        Ok(KernelFrame::Hello { version, python, probe, running, state_of, last_cell, resumes_after })
            if version == BRIDGE_VERSION =>
        {
            let python =
                python.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(VERSION_CHARS).collect();
            Ok(Hello { python, probe, running, state_of, last_cell, resumes_after })
        }
        Ok(KernelFrame::Hello { version, .. }) => Err(BridgeError::Protocol(format!(
            "it wants version {version}, this daemon speaks {BRIDGE_VERSION}"
        ))),
        Ok(_) => Err(BridgeError::Protocol("its first frame is no hello".into())),
        Err(error) => Err(BridgeError::Protocol(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_frame_beyond_the_limit_is_not_taken() {
        let (ours, kernels) = UnixStream::pair().unwrap();
        let kernel = tokio::spawn(async move {
            let mut socket = tokio_tungstenite::accept_async(kernels).await.unwrap();
            // The send may fail, because the client hangs up before it has read the whole frame.
            let _ = socket.send(Message::binary(vec![0; FRAME_BYTES + 1])).await;
        });
        let connected = client_async_with_config("ws://kernel/", ours, Some(settings())).await;
        let (mut socket, _) = connected.unwrap();
        let refused = socket.next().await.unwrap().unwrap_err();
        assert!(matches!(refused, tokio_tungstenite::tungstenite::Error::Capacity(_)), "{refused}");
        kernel.abort();
    }
}
