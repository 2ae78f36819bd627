package format

// Forge returns an object with the given records, which may be invalid. The body in the manifest matches the records.
func Forge(keys *Keys, manifest Manifest, records []byte) (Object, error) {
	var data chunkBuffer
	sealed, err := keys.Seal(&data)
	if err != nil {
		return Object{}, err
	}
	_, _ = sealed.Write(records)
	if err := sealed.Close(); err != nil {
		return Object{}, err
	}
	if manifest.RawBytes == 0 {
		manifest.RawBytes = int64(len(records))
	}
	manifest.Heading = Heading{Format: Format, Kind: SegmentKind}
	manifest.Body = data.body()
	line, err := keys.Sign(manifest)
	return Object{Manifest: manifest, Line: line, data: data}, err
}

// WithChecksum appends the checksum and the closing brace to a line.
func WithChecksum(line []byte) []byte { return withChecksum(line) }
