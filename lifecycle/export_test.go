package lifecycle

// PictureOf is for the test that the embedded picture is the current one.
var PictureOf = pictureOf
