"""The conformance kit: `teletensor conformance ADDRESS` plays transcripts of the wire protocol against any
daemon. The kit has its own encoder; it shares no code with the encoders of the daemon and of this
client."""
