package teletensor

import (
	"fmt"
	"io"

	"teletensor/wire"
)

// upload sends the bytes of a tensor; its number for the command Uploaded. A cut upload is continued.
func (c *Client) upload(data []byte) (number uint64, err error) {
	if c.fatal != nil {
		return 0, c.fatal
	}
	c.uploads++
	key, staged := c.uploads, &wire.StagedReply{}
	err = c.again(func() error {
		err := c.uploadRest(key, data, staged)
		if isLost(err) {
			if err := c.link.unary("Staged", &wire.StagedRequest{Key: key}, staged, c.lease); err != nil {
				return err
			}
		}
		return err
	})
	return staged.Upload, err
}

// uploadRest sends what is not staged, and sets staged.Upload.
func (c *Client) uploadRest(key uint64, data []byte, staged *wire.StagedReply) error {
	if staged.Upload != 0 {
		return nil
	}
	stream, cancel, err := c.link.open("Upload", "teletensor-upload", fmt.Sprint(key))
	defer cancel()
	if err != nil {
		return err
	}
	chunk, rest := &wire.UploadChunk{Bytes: uint64(len(data)), Offset: staged.Received}, data[staged.Received:]
	for size := int(c.limits.MaxChunkBytes); ; {
		if size > len(rest) {
			size = len(rest)
		}
		chunk.Data = rest[:size]
		if stream.SendMsg(chunk) != nil || size == len(rest) {
			break // if it failed, the reply tells why
		}
		chunk, rest = &wire.UploadChunk{Offset: chunk.Offset + uint64(size)}, rest[size:]
	}
	_ = stream.CloseSend()
	reply := &wire.UploadReply{}
	err = receive(stream, reply)
	staged.Upload = reply.Upload
	return err
}

// download reads the elements of a tensor of any size. A cut download is continued.
func (c *Client) download(t Tensor) (data []byte, err error) {
	seq, _ := c.add(&wire.Command{Other: &wire.Command_Fetch{Fetch: &wire.Fetch{
		Handle: t.distance(c.nextID), Bulk: true}}}, 0)
	if err := c.wait(seq); err != nil { // a download names a command that has arrived
		return nil, err
	}
	err = c.again(func() error { return c.downloadRest(seq, &data) })
	c.add(&wire.Command{Other: &wire.Command_Taken{Taken: &wire.Taken{Fetch: seq}}}, 0)
	return data, err
}

func (c *Client) downloadRest(seq uint64, data *[]byte) error {
	stream, cancel, err := c.link.open("Download")
	defer cancel()
	if err != nil {
		return err
	}
	_ = stream.SendMsg(&wire.DownloadRequest{Seq: seq, Offset: uint64(len(*data))})
	_ = stream.CloseSend()
	for total := uint64(1); ; {
		chunk := &wire.DownloadChunk{}
		if err := receive(stream, chunk); err == io.EOF && uint64(len(*data)) == total {
			return nil
		} else if err != nil {
			return err
		}
		if chunk.Bytes != 0 {
			total = chunk.Bytes
		}
		if chunk.Offset != uint64(len(*data)) {
			return fmt.Errorf("teletensor: a download continued at byte %d, not %d", chunk.Offset, len(*data))
		}
		*data = append(*data, chunk.Data...)
	}
}
