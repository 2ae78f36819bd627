package format

// WithChecksum ends a line that lacks its closing brace, for tests that forge some.
func WithChecksum(line []byte) []byte { return withChecksum(line) }
