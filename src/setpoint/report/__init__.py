"""Tables and plots of what runs came to, drawn from plain numbers and texts."""
