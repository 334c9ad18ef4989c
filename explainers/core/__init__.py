"""What an explainer is: its parameters, the question it answers, the objective that is explained."""
